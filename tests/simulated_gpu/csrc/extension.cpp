// A CUDA device in the host's memory, for a torch that was built for the CPU alone: registration, and what Python sees.
// README.md says which rules of CUDA it enforces.
#include "kernels.h"

namespace simulated {

// scaled_dot_product_attention as plain matrix products: the CPU has none of CUDA's fused kernels.
int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;
}


// Torch makes its hooks once, and may have made those of a build without CUDA already. They have no members but their
// virtual table, so ours can be put into the same place.
void replace_hooks() {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.hasCUDA()) new (const_cast<at::CUDAHooksInterface*>(&hooks)) Hooks({});
}

py::dict memory_of(int device) {
  Hold hold;
  const auto& memory = memories[device];
  py::dict result;
  result["total"] = memory.total;
  result["free"] = memory.free();
  result["used"] = memory.used;
  result["used_peak"] = memory.used_peak;
  result["reserved"] = memory.reserved;
  result["reserved_peak"] = memory.reserved_peak;
  return result;
}

void empty_cache() {
  Hold hold;
  check_lost();
  for (auto& memory : memories) memory.reserved = memory.used;
}

void reset_peak(int device) {
  Hold hold;
  memories[device].used_peak = memories[device].used;
  memories[device].reserved_peak = memories[device].reserved;
}

}  // namespace simulated

namespace at {
using CUDAHooks = simulated::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

C10_REGISTER_GUARD_IMPL(CUDA, simulated::Guard)

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::compute_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(simulated::empty));
  m.impl("empty_strided", TORCH_FN(simulated::empty_strided));
  m.impl("as_strided", TORCH_FN(simulated::as_strided));
  m.impl("copy_", TORCH_FN(simulated::copy_));
  m.impl("_local_scalar_dense", TORCH_FN(simulated::local_scalar));
  m.impl("record_stream", TORCH_FN(simulated::record_stream));
  m.impl("_fused_sdp_choice", TORCH_FN(simulated::choose_attention));
  m.impl("histc", torch::CppFunction::makeFromBoxedFunction<&simulated::count_on_host>());
  for (auto* name : {"convolution", "_convolution"})  // they would choose a kernel of cuDNN before the fallback is met
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&simulated::compute_on_host>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace simulated;
  c10::SetAllocator(DeviceType::CUDA, &device_allocator, 200);
  replace_hooks();
  m.def("set_report", [](py::object callback) { on_report = std::move(callback); });
  m.def("set_device_count", [](int count) { device_count = count; });
  m.def("device_count", [] { return device_count; });
  m.def("current_device", [] { return current_device; });
  m.def("set_device", [](int device) { Guard().setDevice(Device(DeviceType::CUDA, static_cast<DeviceIndex>(device))); });
  m.def("exchange_device", [](int device) {
    const int before = current_device;
    if (device >= 0) current_device = device;
    return before;
  });
  m.def("synchronize", [](int device) {
    py::gil_scoped_release others;
    Guard().synchronizeDevice(static_cast<DeviceIndex>(device));
  });
  m.def("default_generator", [](int device) { return default_generators()[device]; });

  m.def("memory", &memory_of);
  m.def("set_total", [](int device, size_t bytes) { Hold hold; memories[device].total = bytes; });
  m.def("set_taken", [](int device, size_t bytes) { Hold hold; memories[device].taken = bytes; });
  m.def("set_fraction", [](int device, double fraction) { Hold hold; memories[device].fraction = fraction; });
  m.def("reset_peak", &reset_peak);
  m.def("empty_cache", &empty_cache);

  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init<>())
      .def("begin", [](Graph& graph) { graph.begin(current_device); })
      .def("end", &Graph::end)
      .def("replay", [](Graph& graph) { graph.replay(current_device); })
      .def("reset", &Graph::reset);
  m.def("is_capturing", [] { return recorded_on(current_key(current_device)) != nullptr; });
  m.def("graph_launches", [] { Hold hold; return Graph::graph_launches; });

  m.def("launch_kernel", &launch_kernel);
  m.def("page_locked_bytes", [] {
    Hold hold;
    size_t bytes = 0;
    for (auto& [_, size] : page_locked) bytes += size;
    return bytes;
  });

  m.def("launches", [] { Hold hold; return launches; });
  m.def("allocations", [] { Hold hold; return allocations; });
  m.def("calls_by_name", [] { Hold hold; return calls_by_name; });
  m.def("late_copies", [] {
    Hold hold;
    size_t count = 0;
    for (auto& [_, stream] : streams) count += stream.late.size();
    return count;
  });
  m.def("fail_launch", [](int64_t nth) { Hold hold; fail_launch = nth < 0 ? -1 : launches + nth; });
  m.def("fail_allocation", [](int64_t nth) { Hold hold; fail_allocation = nth < 0 ? -1 : allocations + nth; });
  m.def("lose", [](const std::string& text) { Hold hold; lose(text); });
  m.def("check_lost", [] { Hold hold; check_lost(); });
  m.def("revive", [] {
    Hold hold;
    lost = false;
    fail_launch = fail_allocation = -1;
  });
}

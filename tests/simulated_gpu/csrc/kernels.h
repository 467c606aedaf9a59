// Kernels: those of the CPU behind the checks that CUDA makes, and copies between the host and the device.
#pragma once
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>

#include "tensors.h"

namespace simulated {

// Kernels whose result says how large it is, or that return a number: on a GPU the host waits in them.
inline const std::set<std::string> WAITS = {
    "aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::equal", "aten::repeat_interleave.Tensor", "aten::bincount", "aten::nonzero_static"};

inline std::map<std::string, int64_t> calls_by_name;

// One call of an operator whose arguments lie on torch's stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), stack_(*stack), name_(c10::toString(schema_.operator_name())),
        by_index_(schema_.name().find("index") != std::string::npos), count_(schema_.arguments().size()),
        first_(stack->size() - count_), written_(count_), aliases_of_written_(count_) {}

  void run() {
    Hold hold;
    check_devices();
    key_ = current_key(device_);
    graph_ = recorded_on(key_);
    if (!graph_) launch(key_);
    ++calls_by_name[name_];
    for (size_t i = 0; i < count_; ++i) to_host(i);
    note_waits();
    hold.let_go();  // a kernel may need the GIL
    if (graph_) recorded_.assign(stack_.begin() + first_, stack_.end());
    if (!compute()) return;
    Hold again;
    for (size_t i = 0; i < count_; ++i) take_resized(i);
    const size_t results = schema_.returns().size();
    for (size_t i = 0; i < results; ++i) to_device_again(stack_[stack_.size() - results + i], i);
    if (graph_ && (writes_ || !outputs_.empty())) record();
  }

 private:
  c10::IValue& argument(size_t i) { return stack_[first_ + i]; }
  bool is_index(size_t i) const { return by_index_ && schema_.arguments()[i].name() == "indices"; }

  template <class Visit>
  void each_tensor(Visit&& visit) {
    auto defined = [&](const at::Tensor& tensor, size_t i) { if (tensor.defined()) visit(tensor, i); };
    for (size_t i = 0; i < count_; ++i) {
      auto& value = argument(i);
      if (value.isTensor()) defined(value.toTensor(), i);
      else if (value.isTensorList()) for (const auto& tensor : value.toTensorVector()) defined(tensor, i);
      else if (value.isOptionalTensorList()) for (const auto& tensor : value.toOptionalTensorVector()) if (tensor) defined(*tensor, i);
    }
  }

  // All operands on one device; numbers of no dimension and indices may be the host's, as CUDA has it.
  void check_devices() {
    auto refuse = [&](Device other, size_t i) {
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:", device_, " and ", other,
                  "! (when checking argument for argument ", schema_.arguments()[i].name(), " in method ", name_, ")");
    };
    each_tensor([&](const at::Tensor& tensor, size_t i) {
      if (!tensor.is_cuda()) return;
      if (device_ >= 0 && device_ != tensor.get_device()) refuse(tensor.device(), i);
      device_ = tensor.get_device();
    });
    for (size_t i = 0; i < count_ && device_ < 0; ++i)
      if (argument(i).isDevice()) device_ = device_or_current(argument(i).toDevice());
    if (device_ < 0) device_ = current_device;
    each_tensor([&](const at::Tensor& tensor, size_t i) {
      masked_ |= is_index(i) && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
      if (tensor.is_cuda()) return;
      indices_on_host_ |= is_index(i);
      if (!is_index(i) && tensor.dim() != 0) refuse(tensor.device(), i);
    });
  }

  // Replace the device in an argument by the host: tensors by aliases, generators by the CPU's inside.
  void to_host(size_t i) {
    auto& value = argument(i);
    auto* alias = schema_.arguments()[i].alias_info();
    const bool writes = alias && alias->isWrite();
    auto convert = [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.defined() || !tensor.is_cuda()) return tensor;
      writes_ |= writes;
      use(tensor, writes);
      return aliases_.of(tensor);
    };
    if (value.isTensor()) {
      auto tensor = value.toTensor();
      auto converted = convert(tensor);
      if (writes && tensor.defined()) {
        written_[i] = tensor;
        aliases_of_written_[i] = converted;
      }
      value = converted;
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(convert(tensor));
      value = c10::IValue(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) list.push_back(tensor ? std::optional(convert(*tensor)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      value = c10::IValue(Device(DeviceType::CPU));
    } else if (value.isGenerator() && value.toGenerator().defined()) {
      auto generator = value.toGenerator();
      TORCH_CHECK(!graph_, "Attempt to increase offset for a CUDA generator not in capture mode.");
      TORCH_CHECK(generator.device().type() == DeviceType::CUDA, "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
      value = c10::IValue(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner);
    }
  }

  void use(const at::Tensor& tensor, bool write) {
    void* base = tensor.storage().mutable_data();
    if (graph_) graph_->use(base, write);
    else access(base, write, key_, name_.c_str());
  }

  // Let the graph call the operator on the same memory, and put its results where they are now.
  void record() {
    graph_->add([op = op_, arguments = std::move(recorded_), outputs = std::move(outputs_)] {
      auto stack = arguments;
      op.callBoxed(stack);
      std::vector<at::Tensor> results;
      for (auto& value : stack)
        if (value.isTensor()) results.push_back(value.toTensor());
        else if (value.isTensorList()) for (const auto& tensor : value.toTensorVector()) results.push_back(tensor);
      for (auto& [place, output] : outputs) output.copy_(results[place]);
    });
  }

  void note_waits() {
    if (graph_ && (WAITS.count(name_) || masked_ || indices_on_host_)) refuse_in_capture();
    if (WAITS.count(name_) || masked_) host_waited_for_current(device_, name_);
    else if (indices_on_host_) report("sync", name_ + " (indices on the host)");
  }

  // Whether the kernel has run. What a CPU's kernel says at once of wrong values, a GPU finds while it computes: the
  // device is lost then.
  bool compute() {
    try {
      op_.callBoxed(stack_);
    } catch (const c10::Error& error) {
      const bool asserts = name_.find("_assert_async") != std::string::npos;
      const bool reads_out_of_range = dynamic_cast<const c10::IndexError*>(&error) &&
                                      (by_index_ || name_ == "aten::embedding" || name_ == "aten::gather");
      if (!asserts && !reads_out_of_range) throw;
      Hold hold;
      lose("CUDA error: device-side assert triggered");
      report("assert", name_ + ": " + error.what_without_backtrace());
      if (reads_out_of_range) check_lost();
      return false;
    }
    return true;
  }

  // An output that the kernel has resized gets memory of the device.
  void take_resized(size_t i) {
    auto& tensor = written_[i];
    if (!tensor.defined() || !tensor.is_cuda()) return;
    auto& alias = aliases_of_written_[i];
    const bool moved = alias.storage().data() != tensor.storage().data();
    if (moved) {
      OnDevice on(tensor.get_device());
      const size_t bytes = alias.storage().nbytes();
      auto data = device_allocator.allocate(bytes);
      if (bytes) memcpy(data.get(), alias.storage().data(), bytes);
      auto* storage = tensor.storage().unsafeGetStorageImpl();
      storage->set_data_ptr_noswap(std::move(data));
      storage->set_nbytes(bytes);
    }
    if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides()) shaped_like(tensor, alias);
    if (moved && graph_) {
      use(tensor, true);
      alias.unsafeGetTensorImpl()->set_storage_keep_dtype(Aliases().of(tensor).storage());
    }
  }

  void to_device_again(c10::IValue& value, size_t result) {
    if (value.isTensor()) {
      value = on_device(value.toTensor(), result);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(on_device(tensor, result));
      value = c10::IValue(list);
    }
  }

  at::Tensor on_device(const at::Tensor& tensor, size_t result) {
    const size_t place = results_++;
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    auto* alias = schema_.returns()[result].alias_info();
    if (alias && alias->isWrite())
      for (size_t i = 0; i < count_; ++i) {
        auto* of_argument = schema_.arguments()[i].alias_info();
        if (of_argument && written_[i].defined() && of_argument->beforeSets() == alias->beforeSets()) return written_[i];
      }
    if (auto* base = aliases_.origin(tensor)) return view_of(*base, tensor);
    auto made = to_device(tensor, device_);
    use(made, true);
    if (graph_) outputs_.emplace_back(place, Aliases().of(made));
    return made;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  const std::string name_;
  const bool by_index_;
  const size_t count_, first_;
  int device_ = -1;
  StreamKey key_ = NO_STREAM;
  bool indices_on_host_ = false, masked_ = false, writes_ = false;
  Graph* graph_ = nullptr;  // that records this call
  size_t results_ = 0;
  torch::jit::Stack recorded_;
  std::vector<std::pair<size_t, at::Tensor>> outputs_;  // by place among the results
  Aliases aliases_;
  std::vector<at::Tensor> written_, aliases_of_written_;
};

inline void compute_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) { Call(op, stack).run(); }

// CUDA counts whole numbers, too.
inline void count_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto& numbers = (*stack)[stack->size() - 4];
  const auto dtype = numbers.toTensor().scalar_type();
  if (at::isIntegralType(dtype, false)) numbers = numbers.toTensor().to(at::kFloat);
  Call(op, stack).run();
  stack->back() = stack->back().toTensor().to(dtype);
}

// ---- copies
inline at::Tensor& copy_on_device(at::Tensor& self, const at::Tensor& source) {
  Hold hold;
  Aliases aliases;
  const auto to = current_key(self.get_device()), from = current_key(source.get_device());
  if (auto* graph = recorded_on(to)) {
    graph->use(source.storage().mutable_data(), false);
    graph->use(self.storage().mutable_data(), true);
    auto copy = [into = aliases.of(self), of = aliases.of(source)]() mutable { into.copy_(of); };
    copy();
    graph->add(std::move(copy));
    return self;
  }
  launch(to);
  if (self.get_device() != source.get_device()) {  // both streams wait for each other
    launch(from);
    join(streams[to].clock, streams[from].clock);
    join(streams[from].clock, streams[to].clock);
  }
  ++calls_by_name["aten::copy_"];
  access(source.storage().mutable_data(), false, from, "aten::copy_");
  access(self.storage().mutable_data(), true, to, "aten::copy_");
  aliases.of(self).copy_(aliases.of(source));
  return self;
}

// Between the host and the device. A copy that nobody waits for, to or from page-locked memory, is made as late as
// waits and events allow: a buffer that is read or filled again too early then gives wrong values.
inline at::Tensor& copy_across(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  Hold hold;
  Aliases aliases;
  const bool arrives = self.is_cuda();
  const at::Tensor& there = arrives ? self : source;
  const at::Tensor& here = arrives ? source : self;
  const auto key = current_key(there.get_device());
  const bool plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() &&
                     self.strides() == source.strides() && self.is_non_overlapping_and_dense();
  const bool locked = is_page_locked(here.data_ptr());
  const bool late = non_blocking && plain && locked;
  if (auto* graph = recorded_on(key)) {
    if (!late || !arrives) refuse_in_capture();
    graph->use(self.storage().mutable_data(), true);
    auto copy = [into = aliases.of(self), of = at::Tensor(source)]() mutable { into.copy_(of); };
    copy();
    graph->add(std::move(copy));
    return self;
  }
  const char* what = arrives ? "copy to device" : "copy to host";
  const auto number = launch(key, late);
  ++calls_by_name[what];
  access(there.storage().mutable_data(), arrives, key, what);
  auto make = [alias = aliases.of(there), here = at::Tensor(here), arrives]() mutable {
    at::InferenceMode allows_writes_to_inference_tensors;
    if (arrives) alias.copy_(here);
    else here.copy_(alias);
  };
  if (late) {
    streams[key].late.push_back({number, std::move(make), there.storage().mutable_data(), arrives});
    return self;
  }
  if (arrives) aliases.of(there).copy_(here);
  else here.copy_(aliases.of(there));
  host_waited(key, number);
  report("sync", c10::str(what, " of ", self.nbytes(), " B, ", locked ? "page-locked" : "pageable", non_blocking ? ", non_blocking" : ""));
  return self;
}

inline at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.numel() == 0 || self.is_same(source)) return self;
  return self.is_cuda() && source.is_cuda() ? copy_on_device(self, source) : copy_across(self, source, non_blocking);
}

inline at::Scalar local_scalar(const at::Tensor& self) {
  Hold hold;
  Aliases aliases;
  const auto key = current_key(self.get_device());
  refuse_in_capture();
  launch(key);
  access(self.storage().mutable_data(), false, key, "item");
  host_waited_for_current(self.get_device(), "item");
  return at::_local_scalar_dense(aliases.of(self));
}

// A kernel that Python computes on tensors of the host, which have the memory of the device's. What it has written is
// what has changed.
inline void launch_kernel(const std::string& name, const std::vector<at::Tensor>& tensors, const py::function& compute) {
  Aliases aliases;
  std::vector<at::Tensor> on_host, before;
  Hold hold;
  const auto key = current_key(tensors.at(0).get_device());
  auto* graph = recorded_on(key);
  if (!graph) launch(key);
  ++calls_by_name[name];
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.is_cuda() && tensor.get_device() == tensors[0].get_device(), name, ": a pointer of another device");
    if (graph) graph->use(tensor.storage().mutable_data(), true);
    else access(tensor.storage().mutable_data(), false, key, name.c_str());
    on_host.push_back(aliases.of(tensor));
    before.push_back(on_host.back().view(at::kByte).clone());
  }
  hold.let_go();
  compute(on_host);
  if (graph) graph->add([compute, on_host] { compute(on_host); });
  Hold again;
  for (size_t i = 0; i < tensors.size() && !graph; ++i)
    if (!on_host[i].view(at::kByte).equal(before[i])) access(tensors[i].storage().mutable_data(), true, key, name.c_str());
}

inline void record_stream(at::Tensor& self, Stream used_on) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), used_on); }

}  // namespace simulated

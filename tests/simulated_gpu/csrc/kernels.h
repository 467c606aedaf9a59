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
    launch(key_);
    ++calls_by_name[name_];
    for (size_t i = 0; i < count_; ++i) to_host(i);
    note_waits();
    hold.let_go();  // a kernel may need the GIL
    if (!compute()) return;
    Hold again;
    for (size_t i = 0; i < count_; ++i) take_resized(i);
    const size_t results = schema_.returns().size();
    for (size_t i = 0; i < results; ++i) to_device_again(stack_[stack_.size() - results + i], i);
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
      access(tensor.storage().mutable_data(), writes, key_, name_.c_str());
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
      TORCH_CHECK(generator.device().type() == DeviceType::CUDA, "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
      value = c10::IValue(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner);
    }
  }

  void note_waits() {
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
    if (alias.storage().data() != tensor.storage().data()) {
      OnDevice on(tensor.get_device());
      const size_t bytes = alias.storage().nbytes();
      auto data = device_allocator.allocate(bytes);
      if (bytes) memcpy(data.get(), alias.storage().data(), bytes);
      auto* storage = tensor.storage().unsafeGetStorageImpl();
      storage->set_data_ptr_noswap(std::move(data));
      storage->set_nbytes(bytes);
    }
    if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides()) shaped_like(tensor, alias);
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
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    auto* alias = schema_.returns()[result].alias_info();
    if (alias && alias->isWrite())
      for (size_t i = 0; i < count_; ++i) {
        auto* of_argument = schema_.arguments()[i].alias_info();
        if (of_argument && written_[i].defined() && of_argument->beforeSets() == alias->beforeSets()) return written_[i];
      }
    if (auto* base = aliases_.origin(tensor)) return view_of(*base, tensor);
    auto made = to_device(tensor, device_);
    access(made.storage().mutable_data(), true, key_, name_.c_str());
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
  bool indices_on_host_ = false, masked_ = false;
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
  launch(key);
  access(self.storage().mutable_data(), false, key, "item");
  host_waited_for_current(self.get_device(), "item");
  return at::_local_scalar_dense(aliases.of(self));
}

inline void record_stream(at::Tensor& self, Stream used_on) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), used_on); }

}  // namespace simulated

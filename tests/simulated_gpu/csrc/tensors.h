// Tensors of the device, and the CPU's tensors on the same memory, on which kernels compute.
#pragma once
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include "devices.h"

namespace simulated {

// A device for a scope, such as that of an allocation.
class OnDevice {
 public:
  explicit OnDevice(int device) { current_device = device; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { current_device = before_; }

 private:
  int before_ = current_device;
};

inline int device_or_current(std::optional<Device> device) {
  return device && device->has_index() ? device->index() : current_device;
}

inline at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice on(device_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  OnDevice on(device_or_current(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

// Give a tensor the sizes, strides and offset of another one.
inline at::Tensor shaped_like(at::Tensor tensor, const at::Tensor& other) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  return tensor;
}

// A view of a device tensor's memory, of the shape and dtype of another tensor.
inline at::Tensor view_of(const at::Tensor& base, const at::Tensor& like) {
  return shaped_like(at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                              base.key_set(), like.dtype()), like);
}

inline at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                             std::optional<c10::SymInt> offset) {
  auto view = view_of(self, self);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                    offset ? offset->guard_int(__FILE__, __LINE__) : self.storage_offset());
  return view;
}

// A kernel's new result on the CPU, moved into memory of the device.
inline at::Tensor to_device(const at::Tensor& result, int device) {
  OnDevice on(device);
  const size_t bytes = result.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, device_allocator.allocate(bytes), &device_allocator, true);
  if (bytes) memcpy(storage.mutable_data(), result.storage().data(), bytes);
  return shaped_like(at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                              result.dtype()), result);
}

// Tensors of the CPU on the memory of device tensors: one storage for each of theirs, so that views stay views.
class Aliases {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = made_.find(storage);
    if (found == made_.end()) {
      c10::Storage same_memory(c10::Storage::use_byte_size_t(), storage->nbytes(),
                               c10::DataPtr(storage->mutable_data(), Device(DeviceType::CPU)), c10::GetCPUAllocator(), true);
      found = made_.emplace(storage, std::pair(tensor, same_memory)).first;
    }
    auto alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(found->second.second),
                                                          c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
    return shaped_like(alias, tensor);
  }

  // The device tensor whose memory this one of the CPU is on; null if it is none of ours.
  const at::Tensor* origin(const at::Tensor& of_cpu) const {
    for (const auto& [_, pair] : made_)
      if (pair.second.unsafeGetStorageImpl() == of_cpu.storage().unsafeGetStorageImpl()) return &pair.first;
    return nullptr;
  }

 private:
  std::map<c10::StorageImpl*, std::pair<at::Tensor, c10::Storage>> made_;  // by the device's storage
};

}  // namespace simulated

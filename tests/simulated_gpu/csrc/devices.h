// What torch asks of a kind of device: its guard (current device, streams, events), its generators, its hooks.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "graphs.h"

namespace simulated {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct EventState {
  Launch launch;
  Clock clock;
  double recorded_s = 0;
  bool polled = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < device_count, "CUDA error: invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count); }

  Stream getStream(Device device) const override { return stream(device, current_stream[index(device)]); }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getNewStream(Device device, int = 0) const override {
    Hold hold;
    return stream(device, next_stream++);
  }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override { return getNewStream(device); }
  Stream exchangeStream(Stream next) const override {
    auto before = getStream(next.device());
    current_stream[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const Stream& asked) const override {
    synchronizeStream(asked);
    return true;
  }
  void synchronizeStream(const Stream& asked) const override {
    Hold hold;
    check_lost();
    refuse_in_capture();
    const auto key = key_of(asked.device_index(), asked.id());
    host_waited(key, streams[key].launched);
    report("sync", "stream");
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    Hold hold;
    check_lost();
    refuse_in_capture();
    for (auto& [key, state] : streams)
      if (key >> 32 == device) host_waited(key, state.launched);
    report("sync", "device");
  }

  void record(void** event, const Stream& on, const DeviceIndex, const c10::EventFlag) const override {
    Hold hold;
    check_lost();
    if (!*event) *event = new EventState;
    const auto key = key_of(on.device_index(), on.id());
    join(streams[key].clock, host);
    *static_cast<EventState*>(*event) = {{key, streams[key].launched}, streams[key].clock, now_s(), false};
  }
  void block(void* event, const Stream& waiting) const override {
    Hold hold;
    check_lost();
    if (!event) return;
    auto& state = *static_cast<EventState*>(event);
    if (recorded_on(state.launch.stream) || recorded_on(key_of(waiting.device_index(), waiting.id()))) refuse_in_capture();
    make_late_copies(state.launch.stream, state.launch.number);
    join(streams[key_of(waiting.device_index(), waiting.id())].clock, state.clock);
  }
  // An event has not passed when it is first asked for, and has when it is asked again.
  bool queryEvent(void* event) const override {
    Hold hold;
    check_lost();
    refuse_in_capture();
    auto* state = static_cast<EventState*>(event);
    if (!state || state->launch.stream == NO_STREAM) return true;
    if (!state->polled) {
      state->polled = true;
      return false;
    }
    pass(*state);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    Hold hold;
    check_lost();
    refuse_in_capture();
    auto* state = static_cast<EventState*>(event);
    if (!state || state->launch.stream == NO_STREAM) return;
    pass(*state);
    report("sync", "event");
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<EventState*>(event); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return (static_cast<EventState*>(second)->recorded_s - static_cast<EventState*>(first)->recorded_s) * 1000;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& used_on) const override {
    Hold hold;
    auto found = blocks.find(data.get());
    if (found != blocks.end()) found->second.recorded.insert(key_of(used_on.device_index(), used_on.id()));
  }

 private:
  static int index(Device device) { return device.has_index() ? device.index() : current_device; }
  static Stream stream(Device device, c10::StreamId id) {
    return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, static_cast<DeviceIndex>(index(device))), id);
  }
  static void pass(const EventState& state) {
    make_late_copies(state.launch.stream, state.launch.number);
    join(host, state.clock);
  }
};

// A generator of the CPU, which says that it is a GPU's.
struct Generator final : c10::GeneratorImpl {
  at::Generator inner = at::detail::createCPUGenerator();

  explicit Generator(DeviceIndex index)
      : c10::GeneratorImpl(Device(DeviceType::CUDA, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the simulated GPU's generators have no offset"); }
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override {
    inner.set_state(at::Tensor(state.shallow_copy_and_detach(c10::VariableVersion(), false)));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.get_state().getIntrusivePtr(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->inner = inner.clone();
    return copy;
  }
};

inline std::vector<at::Generator>& default_generators() {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex index = 0; index < MAX_DEVICES; ++index) made.push_back(at::make_generator<Generator>(index));
    return made;
  }();
  return all;
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  std::string showConfig() const override { return "simulated"; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count); }
  int getNumGPUs() const override { return device_count; }
  DeviceIndex current_device() const override { return static_cast<DeviceIndex>(simulated::current_device); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(DeviceIndex index) const override { simulated::current_device = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    auto before = current_device();
    if (index >= 0) simulated::current_device = index;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* address) const override { return is_page_locked(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &page_locked_allocator; }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, current_device()); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generators()[index < 0 ? simulated::current_device : index];
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device() : index);
  }
  void deviceSynchronize(DeviceIndex index) const override { Guard().synchronizeDevice(index); }
};

}  // namespace simulated

// Streams as vector clocks, late copies, faults, and the one lock of the simulation.
//
// Each launch on a stream has a number. A clock says, for each stream, up to which launch everything is known to be
// over. Streams get knowledge from events and from the host, and the host from waits. What is used without such
// knowledge is a race on a real GPU, and reported here.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace simulated {

constexpr int MAX_DEVICES = 4;
constexpr int64_t NO_STREAM = -1;

using StreamKey = int64_t;  // the device's index and the stream's id in one
using Clock = std::map<StreamKey, uint64_t>;

inline StreamKey key_of(int device, c10::StreamId id) { return static_cast<int64_t>(device) << 32 | static_cast<uint32_t>(id); }

struct Launch {
  StreamKey stream = NO_STREAM;
  uint64_t number = 0;
};

struct LateCopy {
  uint64_t number;
  std::function<void()> make;
  void* block;  // of the device, which it doesn't keep
  bool arrives;  // there, and else leaves it
};

struct StreamState {
  uint64_t launched = 0;
  Clock clock;
  std::deque<LateCopy> late;
};

// ---- state: all of it is guarded by `lock`, but for what belongs to a thread
inline std::recursive_mutex lock;
inline std::map<StreamKey, StreamState> streams;
inline Clock host;  // what the host knows to be over
inline int device_count = 1;
inline int64_t launches = 0, fail_launch = -1;
inline bool lost = false;
inline std::string lost_text;
inline const char* const ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered";
inline c10::StreamId next_stream = 1;
inline py::object& on_report = *new py::object;  // called with (kind, text); never freed: Python ends before it would be
inline thread_local int current_device = 0;
inline thread_local c10::StreamId current_stream[MAX_DEVICES] = {};
inline thread_local int held = 0;
inline thread_local std::vector<std::pair<std::string, std::string>> reports;
inline thread_local std::vector<std::function<void()>> made_copies;  // they are freed without the lock

// Note what the device has seen: "sync" (the host has waited), "race", "free" or "assert".
inline void report(const char* kind, const std::string& text) { reports.emplace_back(kind, text); }

// Pass the calling thread's reports to Python, which takes the GIL.
inline void pass_reports() {
  if (reports.empty() || !Py_IsInitialized()) return;
  auto passed = std::move(reports);
  reports.clear();
  py::gil_scoped_acquire gil;
  py::error_scope keeps_the_error_that_is_under_way;
  if (!on_report || on_report.is_none()) return;
  for (auto& [kind, text] : passed) {
    try {
      on_report(kind, text);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("simulated_gpu");
    }
  }
}

// The lock for a scope. A thread that must wait for it lets go of the GIL: whoever has the lock may need the GIL, as
// each copy of a tensor that Python holds does (c10/util/intrusive_ptr.h, "PyObject preservation").
class Hold {
 public:
  Hold() {
    if (!lock.try_lock()) {
      if (Py_IsInitialized() && PyGILState_Check()) {
        py::gil_scoped_release others_may_need_it;
        lock.lock();
      } else {
        lock.lock();
      }
    }
    ++held;
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { let_go(); }

  void let_go() {
    if (!holds_) return;
    holds_ = false;
    --held;
    lock.unlock();
    if (held) return;
    auto gone = std::move(made_copies);
    made_copies.clear();
    gone.clear();
    pass_reports();
  }

 private:
  bool holds_ = true;
};

// Raise the device's sticky error, if it has one.
inline void check_lost() {
  if (lost) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, lost_text);
}

inline void lose(const std::string& text) {
  lost = true;
  lost_text = text.empty() ? ILLEGAL_ACCESS : text;
}

inline StreamKey current_key(int device) { return key_of(device, current_stream[device]); }

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void join(Clock& into, const Clock& other) {
  for (const auto& [stream, number] : other) into[stream] = std::max(into[stream], number);
}

// Make the late copies of a stream up to a launch.
inline void make_late_copies(StreamKey key, uint64_t up_to) {
  auto& stream = streams[key];
  while (!stream.late.empty() && stream.late.front().number <= up_to) {
    auto make = std::move(stream.late.front().make);
    stream.late.pop_front();
    make();
    made_copies.push_back(std::move(make));
  }
}

// Note that the host has waited for a launch.
inline void host_waited(StreamKey key, uint64_t number) {
  make_late_copies(key, number);
  host[key] = std::max(host[key], number);
  if (number >= streams[key].launched) join(host, streams[key].clock);
}

inline void host_waited_for_current(int device, const std::string& why) {
  const auto key = current_key(device);
  host_waited(key, streams[key].launched);
  report("sync", why);
}

// Number something new on a stream, after all that the host knows to be over. A late copy stays behind other late ones.
inline uint64_t launch(StreamKey key, bool late = false) {
  check_lost();
  if (++launches == fail_launch) lose("");
  check_lost();
  auto& stream = streams[key];
  join(stream.clock, host);
  if (!late) make_late_copies(key, stream.launched);
  stream.clock[key] = ++stream.launched;
  return stream.launched;
}

}  // namespace simulated

// CUDA graphs: the operators of one thread on one stream, recorded with the places that they read and write.
//
// A capture launches nothing. Here operators have to run for their results to have a shape, so what they have written is
// undone at its end: old memory gets its bytes back, and new memory, which is the graph's own, those of fresh memory.
#pragma once
#include <memory>
#include <utility>

#include "memory.h"

namespace simulated {

[[noreturn]] inline void raise_accelerator_error(int code, const char* text) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, text);
}

class Graph {
 public:
  using Pool = std::pair<int64_t, int64_t>;

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { reset(); }

  void begin(int device) {
    Hold hold;
    check_lost();
    key_ = current_key(device);
    TORCH_CHECK(current_stream[device] != 0, "CUDA graphs must be captured on a non-default stream.");
    TORCH_CHECK(!recording && steps_.empty(), "This CUDAGraph instance already owns a captured graph.");
    make_late_copies(key_, streams[key_].launched);
    recording = this;
  }

  void end() {
    Hold hold;
    TORCH_CHECK(recording == this, "capture_end is called without capture_begin");
    recording = nullptr;
    for (auto& [base, bytes] : overwritten_)
      if (blocks.count(base)) memcpy(base, bytes.data(), bytes.size());
    overwritten_.clear();
    for (auto& [base, block] : blocks)
      if (block.graph == this) memset(base, UNWRITTEN, block.size);
    check_lost();
    if (!invalid_) return;
    hold.let_go();
    reset();
    raise_accelerator_error(901, "CUDA error: operation failed due to a previous error during capture");
  }

  // One launch on the current stream: all operators, on the memory that they were recorded with.
  void replay(int device) {
    {
      Hold hold;
      TORCH_CHECK(!steps_.empty(), "Called CUDAGraph::replay without a preceding successful capture.");
      const auto key = current_key(device);
      launch(key);
      ++graph_launches;
      for (auto& [base, used] : used_) {
        auto found = blocks.find(base);
        if (found == blocks.end() || found->second.id != used.block) {
          report("free", "a graph is replayed whose memory has been freed since it was captured");
          lose("");
          check_lost();
        }
        if (used.reads) access(base, false, key, "graph");
        if (used.writes) access(base, true, key, "graph");
      }
    }
    at::InferenceMode allows_writes_to_inference_tensors;
    for (auto& step : steps_) step();
  }

  // Free the memory of intermediate results, but for what Python still has.
  void reset() {
    std::vector<void*> freed;
    {
      Hold hold;
      if (recording == this) recording = nullptr;
      for (auto& [base, block] : blocks)
        if (block.graph == this) {
          block.graph = nullptr;
          if (block.left_to_graph) freed.push_back(base);
        }
      for (void* base : freed) forget_block(base);
    }
    steps_.clear();
    used_.clear();
    overwritten_.clear();
    invalid_ = false;
  }

  bool records(StreamKey key) const { return key == key_; }

  // Note what the operator that is being recorded uses, and keep what it will overwrite.
  void use(void* base, bool write) {
    auto found = blocks.find(base);
    if (found == blocks.end()) return;
    auto& used = used_.try_emplace(base, Used{found->second.id}).first->second;
    (write ? used.writes : used.reads) = true;
    if (!write || found->second.graph == this || overwritten_.count(base)) return;
    auto* bytes = static_cast<char*>(base);
    overwritten_.emplace(base, std::vector<char>(bytes, bytes + found->second.size));
  }

  void add(std::function<void()> step) { steps_.push_back(std::move(step)); }
  void invalidate() { invalid_ = true; }

  static inline thread_local Graph* recording = nullptr;
  static inline int64_t graph_launches = 0;

 private:
  struct Used {
    uint64_t block;
    bool reads = false, writes = false;
  };

  StreamKey key_ = NO_STREAM;
  bool invalid_ = false;
  std::vector<std::function<void()>> steps_;
  std::map<void*, Used> used_;
  std::map<void*, std::vector<char>> overwritten_;
};

// The graph that the calling thread records on this stream, if there is one.
inline Graph* recorded_on(StreamKey key) {
  return Graph::recording && Graph::recording->records(key) ? Graph::recording : nullptr;
}

// What makes the host wait can't be captured, and spoils the capture.
inline void refuse_in_capture() {
  if (!Graph::recording) return;
  Graph::recording->invalidate();
  raise_accelerator_error(900, "CUDA error: operation not permitted when stream is capturing");
}

inline Graph* recording_graph() { return Graph::recording; }

}  // namespace simulated

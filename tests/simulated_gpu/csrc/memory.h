// The device's memory: a budget in bytes, who has written and read each block, and page-locked memory of the host.
#pragma once
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <unordered_map>

#include "clocks.h"

namespace simulated {

constexpr size_t GRAIN = 512;  // of CUDA's caching allocator
constexpr int UNWRITTEN = 0xFF;  // in every byte of fresh memory: NaN in all floating dtypes

class Graph;
Graph* recording_graph();

struct Block {
  size_t size = 0;
  int device = 0;
  StreamKey stream = NO_STREAM;  // it was allocated for
  std::set<StreamKey> recorded;  // by record_stream
  Launch write;
  std::map<StreamKey, uint64_t> reads;
  uint64_t id = 0;  // no other block has or had
  Graph* graph = nullptr;  // whose memory it is
  bool left_to_graph = false;  // no tensor has it any more
};

struct DeviceMemory {
  size_t total = 80ull << 30, taken = 0;  // `taken` by other processes
  size_t used = 0, used_peak = 0, reserved = 0, reserved_peak = 0;
  double fraction = 1;

  size_t free() const { return total - std::min(total, taken + reserved); }
  size_t limit() const { return std::min(static_cast<size_t>(static_cast<double>(total) * fraction), total - std::min(total, taken)); }
};

inline std::unordered_map<void*, Block> blocks;
inline std::map<char*, size_t> page_locked;
inline DeviceMemory memories[MAX_DEVICES];
inline int64_t allocations = 0, fail_allocation = -1;
inline uint64_t blocks_made = 0;

// Note that a launch, the newest one of `key`, reads or writes a block, and report what it should have waited for.
inline void access(void* base, bool write, StreamKey key, const char* what) {
  auto found = blocks.find(base);
  if (found == blocks.end()) return;
  auto& block = found->second;
  auto& clock = streams[key].clock;
  auto is_over = [&](StreamKey stream, uint64_t number) { return stream == key || clock[stream] >= number; };
  if (block.write.stream != NO_STREAM && !is_over(block.write.stream, block.write.number))
    report("race", c10::str(what, ": stream ", key, write ? " writes" : " reads", " what stream ", block.write.stream,
                            " wrote, without waiting"));
  if (!write) {
    block.reads[key] = streams[key].launched;
    return;
  }
  for (auto& [stream, number] : block.reads)
    if (!is_over(stream, number))
      report("race", c10::str(what, ": stream ", key, " overwrites what stream ", stream, " reads, without waiting"));
  block.write = {key, streams[key].launched};
  block.reads.clear();
}

// Whether another stream than the block's own may still use it, and record_stream does not say so. CUDA's allocator
// gives freed memory to its stream at once; this says so at the free, though the block might not be reused.
inline bool is_freed_too_early(const Block& block) {
  auto& own = streams[block.stream].clock;
  auto in_use = [&](StreamKey stream, uint64_t number) {
    return stream != block.stream && stream != NO_STREAM && !block.recorded.count(stream) && own[stream] < number && host[stream] < number;
  };
  return in_use(block.write.stream, block.write.number) ||
         std::any_of(block.reads.begin(), block.reads.end(), [&](auto& read) { return in_use(read.first, read.second); });
}

// Memory that is freed is its stream's to use again: late copies to it are dropped, and the last late copy from it, if
// there is one, frees the host's memory behind it. Returns whether one will.
inline bool is_left_to_late_copies(void* base) {
  std::function<void()>* last = nullptr;
  for (auto& [_, stream] : streams) {
    for (auto& copy : stream.late) {
      if (copy.block != base) continue;
      if (copy.arrives) {
        made_copies.push_back(std::move(copy.make));
        copy.make = [] {};
      } else {
        last = &copy.make;
      }
      copy.block = nullptr;
    }
  }
  if (last) *last = [make = std::move(*last), base]() mutable {
    make();
    std::free(base);
  };
  return last != nullptr;
}

inline void forget_block(void* base) {
  auto found = blocks.find(base);
  memories[found->second.device].used -= found->second.size;
  blocks.erase(found);
  if (!is_left_to_late_copies(base)) std::free(base);
}

inline void delete_block(void* base) {
  Hold hold;
  if (!base) return;
  auto found = blocks.find(base);
  if (found != blocks.end() && found->second.graph) {
    found->second.left_to_graph = true;
  } else if (found != blocks.end()) {
    if (is_freed_too_early(found->second))
      report("free", "memory of one stream is freed while another may still use it (no record_stream)");
    forget_block(base);
  } else if (!is_left_to_late_copies(base)) {
    std::free(base);
  }
}

inline void* host_memory(size_t bytes) {
  void* base = nullptr;
  TORCH_CHECK(posix_memalign(&base, 64, bytes + 64) == 0, "the host has no memory for the simulated GPU");
  memset(base, UNWRITTEN, bytes);
  return base;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Hold hold;
    check_lost();
    const int device = current_device;
    auto& memory = memories[device];
    const c10::Device where(c10::DeviceType::CUDA, device);
    if (bytes == 0) return {nullptr, nullptr, &delete_block, where};
    const size_t size = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    if (++allocations == fail_allocation || memory.used + size > memory.limit())
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes >> 20, " MiB. GPU ", device,
                       " has a total capacity of ", memory.total >> 20, " MiB of which ", memory.free() >> 20, " MiB is free. (simulated)");
    void* base = host_memory(size);
    memory.used += size;
    memory.used_peak = std::max(memory.used_peak, memory.used);
    memory.reserved = std::max(memory.reserved, memory.used);
    memory.reserved_peak = std::max(memory.reserved_peak, memory.reserved);
    blocks[base] = Block{size, device, current_key(device)};
    blocks[base].id = ++blocks_made;
    blocks[base].graph = recording_graph();
    return {base, base, &delete_block, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
inline DeviceAllocator device_allocator;

inline void delete_page_locked(void* base) {
  Hold hold;
  page_locked.erase(static_cast<char*>(base));
  std::free(base);
}

struct PageLockedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Hold hold;
    check_lost();
    void* base = host_memory(bytes);
    page_locked[static_cast<char*>(base)] = std::max<size_t>(bytes, 1);
    return {base, base, &delete_page_locked, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_page_locked; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
inline PageLockedAllocator page_locked_allocator;

inline bool is_page_locked(const void* address) {
  Hold hold;
  auto* wanted = static_cast<char*>(const_cast<void*>(address));
  auto after = page_locked.upper_bound(wanted);
  if (after == page_locked.begin()) return false;
  --after;
  return wanted < after->first + after->second;
}

}  // namespace simulated

// Just enough of CUDA, in C++17, to run this project's kernels on a CPU and look at their results: included before a
// .cu file, it makes g++ compile it. A CUDA thread is a fiber that runs until it waits, the blocks of a cluster are
// operating-system threads, clusters run one after the other. Shared memory holds what the last block left there.
// Nothing races, nothing is fast.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static thread_local
#define LAUNCH(kernel, grid, block, cluster, stream, ...) \
    cuda_on_cpu::launch(grid, block, cluster, [&]() { kernel(__VA_ARGS__); })

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

constexpr unsigned kLanes = 32;
constexpr size_t kStackBytes = 128 << 10;

// A barrier of the blocks of a cluster.
class ClusterBarrier {
  public:
    explicit ClusterBarrier(unsigned blocks) : blocks_(blocks) {}
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        const unsigned round = round_;
        if (++arrived_ >= blocks_) {
            open();
        } else {
            changed_.wait(lock, [&] { return round_ != round; });
        }
    }
    void leave() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (--blocks_ > 0 && arrived_ >= blocks_) open();
    }

  private:
    void open() {
        arrived_ = 0;
        ++round_;
        changed_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned blocks_, arrived_ = 0, round_ = 0;
};

// Fibers that have arrived, of those that still run.
struct Barrier {
    unsigned expected = 0, arrived = 0, round = 0;
};

// Started by setcontext, resumed by longjmp, which costs no system call.
struct Fiber {
    ucontext_t start;
    jmp_buf here;
    bool started = false, done = false;
};

struct Block {
    dim3 size;
    ClusterBarrier* cluster;
    std::function<void()> kernel;
    std::vector<Fiber> fibers;
    std::vector<Barrier> warps;
    std::vector<uint64_t> lanes;  // what each thread shows its warp
    Barrier all;
    jmp_buf scheduler;
    unsigned current = 0;

    void yield() {
        if (_setjmp(fibers[current].here) == 0) _longjmp(scheduler, 1);
    }

    void resume() {
        if (_setjmp(scheduler) != 0) return;
        Fiber& fiber = fibers[current];
        if (fiber.started) _longjmp(fiber.here, 1);
        fiber.started = true;
        setcontext(&fiber.start);
    }

    void wait(Barrier& barrier) {
        const unsigned round = barrier.round;
        if (++barrier.arrived >= barrier.expected) {
            barrier.arrived = 0;
            ++barrier.round;
        }
        while (barrier.round == round) yield();
    }

    static void leave(Barrier& barrier) {
        if (--barrier.expected > 0 && barrier.arrived >= barrier.expected) {
            barrier.arrived = 0;
            ++barrier.round;
        }
    }
};

inline thread_local Block* block = nullptr;
inline thread_local std::vector<std::unique_ptr<char[]>> stacks;

inline void run_fiber() {
    block->kernel();
    Fiber& self = block->fibers[block->current];
    self.done = true;
    Block::leave(block->all);
    Block::leave(block->warps[block->current / kLanes]);
    block->yield();
}

inline void run_block(Block& mine, dim3 grid, dim3 index) {
    block = &mine;
    blockDim = mine.size, gridDim = grid, blockIdx = index;
    const unsigned count = mine.size.x;
    mine.fibers = std::vector<Fiber>(count);
    mine.lanes.resize(count);
    mine.warps.resize((count + kLanes - 1) / kLanes);
    mine.all.expected = count;
    for (unsigned i = 0; i < count; ++i) {
        ++mine.warps[i / kLanes].expected;
        Fiber& fiber = mine.fibers[i];
        if (i >= stacks.size()) stacks.emplace_back(new char[kStackBytes]);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = stacks[i].get();
        fiber.start.uc_stack.ss_size = kStackBytes;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, run_fiber, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < count; ++i) {
            if (mine.fibers[i].done) continue;
            running = true;
            mine.current = i;
            threadIdx = dim3(i, 0, 0);
            mine.resume();
        }
    }
    mine.cluster->leave();
}

template <typename Kernel>
int launch(dim3 grid, dim3 size, unsigned cluster, Kernel kernel) {
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; x += cluster) {
                ClusterBarrier barrier(cluster);
                const auto run = [&](unsigned rank) {
                    Block mine;
                    mine.size = size, mine.cluster = &barrier, mine.kernel = kernel;
                    run_block(mine, grid, dim3(x + rank, y, z));
                };
                std::vector<std::thread> others;
                for (unsigned rank = 1; rank < cluster; ++rank) others.emplace_back(run, rank);
                run(0);
                for (auto& other : others) other.join();
            }
        }
    }
    return 0;
}

// Every lane shows a value; returns what `source` shows.
template <typename T>
T exchange(T value, unsigned source) {
    static_assert(sizeof(T) <= 8);
    const unsigned me = block->current, first = me / kLanes * kLanes;
    memcpy(&block->lanes[me], &value, sizeof(T));
    block->wait(block->warps[me / kLanes]);
    T other;
    memcpy(&other, &block->lanes[first + source], sizeof(T));
    block->wait(block->warps[me / kLanes]);
    return other;
}

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::block->wait(cuda_on_cpu::block->all); }
inline void __syncwarp() {
    cuda_on_cpu::block->wait(cuda_on_cpu::block->warps[cuda_on_cpu::block->current / cuda_on_cpu::kLanes]);
}
inline void cluster_barrier() {
    // The last fiber of the block to arrive stands for it among the blocks.
    cuda_on_cpu::Block& block = *cuda_on_cpu::block;
    if (block.all.arrived + 1 == block.all.expected) block.cluster->wait();
    block.wait(block.all);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    return cuda_on_cpu::exchange(value, cuda_on_cpu::block->current % cuda_on_cpu::kLanes ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T value, unsigned lane) {
    return cuda_on_cpu::exchange(value, lane);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
    unsigned lanes = 0;
    for (unsigned lane = 0; lane < cuda_on_cpu::kLanes; ++lane) {
        lanes |= static_cast<unsigned>(__shfl_sync(0u, predicate, lane)) << lane;
    }
    return lanes;
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int atomicAdd(int* address, int value) {
    const int before = *address;
    *address += value;
    return before;
}
inline void __threadfence() {}
template <typename T>
T __ldcg(const T* pointer) {
    return *static_cast<const volatile T*>(pointer);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }
inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// What all kernels share: launches, warp reductions, ordered keys and Philox.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_runtime.h>

// Launch and return the launch's error. A kernel's cluster size is an attribute of the kernel; it is named
// here as well for launches by other means.
#define LAUNCH(kernel, grid, block, cluster, stream, ...) \
    (kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__), cudaGetLastError())

// All threads of the cluster; what they wrote to global memory before is visible after. The aligned instructions want
// every warp whole, and one whose lanes have gone separate ways may not be until it is synchronized.
__device__ __forceinline__ void cluster_barrier() {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
#endif

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// ---- values as integers that order like them ----

__device__ __forceinline__ uint32_t ordered_bits(float value) {
    const uint32_t bits = __float_as_uint(value + 0.0f);  // minus zero becomes zero: they are equal
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered_bits(uint32_t ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// A (value, id) pair as one integer: the greater value wins, in a tie the lower id. Zero is no pair at all.
using Key = unsigned long long;

__device__ __forceinline__ Key make_key(float value, uint32_t id) {
    return (static_cast<Key>(ordered_bits(value)) << 32) | (0xffffffffu - id);
}

__device__ __forceinline__ float key_value(Key key) { return from_ordered_bits(static_cast<uint32_t>(key >> 32)); }

__device__ __forceinline__ uint32_t key_id(Key key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// ---- warp reductions; every lane gets the result, in an order that depends on nothing ----

template <typename T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
        const T other = __shfl_xor_sync(kAllLanes, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, offset);
    }
    return value;
}

// ---- structures of 32-bit words across lanes and blocks ----

template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, unsigned offset) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = __shfl_xor_sync(kAllLanes, words[i], offset);
    memcpy(&value, words, sizeof(T));
    return value;
}

// What another block has written: from the level-2 cache, never from a stale line of the first level.
template <typename T>
__device__ __forceinline__ T load_fresh(const T* pointer) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = __ldcg(reinterpret_cast<const uint32_t*>(pointer) + i);
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}

// ---- loads as float; bf16 is the upper half of a float ----

__device__ __forceinline__ float load_float(const float* pointer, int64_t index) { return pointer[index]; }

__device__ __forceinline__ float load_float(const uint16_t* pointer, int64_t index) {
    return __uint_as_float(static_cast<uint32_t>(pointer[index]) << 16);
}

// ---- Philox4x32-10 ----

struct Words {
    uint32_t word[4];
};

__device__ __forceinline__ Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Standard Gumbel noise; the same arithmetic as engine/kernels/random.py.
__device__ __forceinline__ float gumbel(uint32_t word) {
    const float v = fminf(fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f), 1.0f - 0x1p-24f);
    return -logf(-log1pf(-v));
}

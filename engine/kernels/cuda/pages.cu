// Copies of whole KV cache pages.
#include "common.cuh"

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnroll = 4;

// One block per (slice of a page, page, cache).
__global__ void __launch_bounds__(kThreads)
copy_pages_kernel(uint4* k_cache, uint4* v_cache, const int64_t* sources, const int64_t* targets, int64_t page_vectors) {
    uint4* cache = blockIdx.z == 0 ? k_cache : v_cache;
    const uint4* source = cache + sources[blockIdx.y] * page_vectors;
    uint4* target = cache + targets[blockIdx.y] * page_vectors;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
    uint4 held[kUnroll];
#pragma unroll
    for (unsigned i = 0; i < kUnroll; ++i) {
        if (first + i * kThreads < page_vectors) held[i] = source[first + i * kThreads];
    }
#pragma unroll
    for (unsigned i = 0; i < kUnroll; ++i) {
        if (first + i * kThreads < page_vectors) target[first + i * kThreads] = held[i];
    }
}

}  // namespace

// Pages of page_bytes, a multiple of 16, at 16-byte aligned addresses.
extern "C" int blis_copy_pages(void* k_cache, void* v_cache, const int64_t* sources, const int64_t* targets,
                               int64_t count, int64_t page_bytes, void* stream) {
    const int64_t vectors = page_bytes / 16;
    const dim3 grid(static_cast<unsigned>((vectors + kThreads * kUnroll - 1) / (kThreads * kUnroll)),
                    static_cast<unsigned>(count), 2);
    return LAUNCH(copy_pages_kernel, grid, dim3(kThreads), 1, stream, static_cast<uint4*>(k_cache),
                  static_cast<uint4*>(v_cache), sources, targets, vectors);
}

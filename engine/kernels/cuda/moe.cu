// Mixture of experts: routing with a warp per token, and alignment of the routed rows to experts.
#include "common.cuh"

namespace {

constexpr unsigned kWarpsPerBlock = 4;
constexpr int kMaxRoutedExperts = 512;
constexpr int kAlignThreads = 256;
constexpr int kMaxAlignedExperts = 1024;

// Lane l holds experts l, l + 32, ... . Calls `emit(rank, key)` on every lane for the top_k keys in falling order.
template <int PER_LANE, typename Emit>
__device__ __forceinline__ void select_top(const float (&values)[PER_LANE], int experts, int top_k, Emit emit) {
    const int lane = threadIdx.x % kWarp;
    uint32_t taken = 0;
    for (int rank = 0; rank < top_k; ++rank) {
        Key best = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int expert = lane + i * static_cast<int>(kWarp);
            if (expert < experts && !(taken >> i & 1)) {
                const Key key = make_key(values[i], expert);
                best = key > best ? key : best;
            }
        }
        best = warp_max(best);
        const int winner = static_cast<int>(key_id(best));
        if (winner % static_cast<int>(kWarp) == lane) taken |= 1u << (winner / kWarp);
        emit(rank, best);
    }
}

template <typename T, int PER_LANE>
__global__ void __launch_bounds__(kWarp * kWarpsPerBlock)
route_softmax_kernel(const T* logits, int tokens, int experts, int top_k, int renormalize, float* weights, int* ids) {
    const int lane = threadIdx.x % kWarp;
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
    if (token >= tokens) return;
    float values[PER_LANE];
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int expert = lane + i * static_cast<int>(kWarp);
        values[i] = expert < experts ? load_float(logits, token * experts + expert) : -INFINITY;
        highest = fmaxf(highest, values[i]);
    }
    highest = warp_max(highest);
    float total = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) total += expf(values[i] - highest);
    Key mine = 0;
    select_top<PER_LANE>(values, experts, top_k, [&](int rank, Key key) {
        if (rank == lane) mine = key;
    });
    float weight = lane < top_k ? expf(key_value(mine) - highest) : 0.0f;
    weight /= warp_sum(renormalize ? weight : total);
    if (lane < top_k) {
        weights[token * top_k + lane] = weight;
        ids[token * top_k + lane] = static_cast<int>(key_id(mine));
    }
}

// The groups eligible for a token, as a bit mask: lane g scores group g by its two best values.
__device__ __forceinline__ unsigned eligible_groups(const float* values, int experts, int groups, int keep) {
    const int lane = threadIdx.x % kWarp;
    const int size = experts / groups;
    float best = -INFINITY, second = -INFINITY;
    if (lane < groups) {
        for (int i = 0; i < size; ++i) {
            const float value = values[lane * size + (i + lane) % size];  // rotated: the lanes hit different banks
            second = fmaxf(second, fminf(best, value));
            best = fmaxf(best, value);
        }
    }
    const Key score = lane < groups ? make_key(best + second, lane) : 0;
    int better = 0;
    for (int group = 0; group < groups; ++group) better += __shfl_sync(kAllLanes, score, group) > score;
    return __ballot_sync(kAllLanes, lane < groups && better < keep);
}

template <typename T, int PER_LANE>
__global__ void __launch_bounds__(kWarp * kWarpsPerBlock)
route_grouped_sigmoid_kernel(const T* logits, const float* bias, int tokens, int experts, int top_k, int groups,
                             int keep_groups, int renormalize, float scale, float* weights, int* ids) {
    __shared__ float shared[kWarpsPerBlock][kMaxRoutedExperts];
    const int lane = threadIdx.x % kWarp;
    float* biased = shared[threadIdx.x / kWarp];
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
    if (token >= tokens) return;
    float values[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int expert = lane + i * static_cast<int>(kWarp);
        values[i] = -INFINITY;
        if (expert < experts) {
            values[i] = 1.0f / (1.0f + expf(-load_float(logits, token * experts + expert))) + bias[expert];
            biased[expert] = values[i];
        }
    }
    if (keep_groups < groups) {
        __syncwarp();
        const unsigned eligible = eligible_groups(biased, experts, groups, keep_groups);
        const int size = experts / groups;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int expert = lane + i * static_cast<int>(kWarp);
            if (expert < experts && !(eligible >> (expert / size) & 1)) values[i] = -INFINITY;
        }
    }
    Key mine = 0;
    select_top<PER_LANE>(values, experts, top_k, [&](int rank, Key key) {
        if (rank == lane) mine = key;
    });
    float weight = 0;
    if (lane < top_k) weight = 1.0f / (1.0f + expf(-load_float(logits, token * experts + key_id(mine))));
    if (renormalize) weight /= fmaxf(warp_sum(weight), 1e-20f);
    if (lane < top_k) {
        weights[token * top_k + lane] = weight * scale;
        ids[token * top_k + lane] = static_cast<int>(key_id(mine));
    }
}

// Sum over the block; every thread gets it.
__device__ __forceinline__ int block_sum(int value) {
    __shared__ int partial[kAlignThreads / kWarp];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int warp = 0; warp < kAlignThreads / static_cast<int>(kWarp); ++warp) total += partial[warp];
    return total;
}

// One block per expert. Each counts all experts' rows for itself, which gives where its own begin, then
// collects its rows in rising order with ballots: no order depends on timing, and one launch does it all.
__global__ void __launch_bounds__(kAlignThreads)
align_experts_kernel(const int* ids, int num_rows, int experts, int block_m, int capacity, int* rows, int* tile_experts,
                     int* padded) {
    __shared__ int counts[kMaxAlignedExperts];
    __shared__ int warp_counts[kAlignThreads / kWarp];
    const int expert = blockIdx.x;
    const int thread = threadIdx.x;
    for (int e = thread; e < experts; e += kAlignThreads) counts[e] = 0;
    __syncthreads();
    for (int row = thread; row < num_rows; row += kAlignThreads) atomicAdd(&counts[ids[row]], 1);
    __syncthreads();
    int before = 0, all = 0;
    for (int e = thread; e < experts; e += kAlignThreads) {
        const int tiles = (counts[e] + block_m - 1) / block_m;
        before += e < expert ? tiles : 0;
        all += tiles;
    }
    const int first_tile = block_sum(before);
    const int all_tiles = block_sum(all);
    const int end_tile = first_tile + (counts[expert] + block_m - 1) / block_m;

    int next = first_tile * block_m;
    const int lane = thread % kWarp, warp = thread / kWarp;
    for (int start = 0; start < num_rows; start += kAlignThreads) {
        const int row = start + thread;
        const bool mine = row < num_rows && ids[row] == expert;
        const unsigned lanes = __ballot_sync(kAllLanes, mine);
        if (lane == 0) warp_counts[warp] = __popc(lanes);
        __syncthreads();
        int place = next + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
        for (int w = 0; w < kAlignThreads / static_cast<int>(kWarp); ++w) {
            place += w < warp ? warp_counts[w] : 0;
            next += warp_counts[w];
        }
        if (mine) rows[place] = row;
        __syncthreads();
    }
    for (int place = next + thread; place < end_tile * block_m; place += kAlignThreads) rows[place] = num_rows;
    for (int tile = first_tile + thread; tile < end_tile; tile += kAlignThreads) tile_experts[tile] = expert;
    if (expert == experts - 1) {
        for (int place = all_tiles * block_m + thread; place < capacity; place += kAlignThreads) rows[place] = num_rows;
        for (int tile = all_tiles + thread; tile < capacity / block_m; tile += kAlignThreads) tile_experts[tile] = -1;
        if (thread == 0) *padded = all_tiles * block_m;
    }
}

// Calls `run` with the number of experts per lane as a compile-time constant.
template <typename Run>
int with_experts_per_lane(int experts, Run run) {
    if (experts <= 32) return run(std::integral_constant<int, 1>());
    if (experts <= 64) return run(std::integral_constant<int, 2>());
    if (experts <= 128) return run(std::integral_constant<int, 4>());
    if (experts <= 256) return run(std::integral_constant<int, 8>());
    return run(std::integral_constant<int, 16>());
}

template <typename T>
int route_softmax(const T* logits, int tokens, int experts, int top_k, int renormalize, float* weights, int* ids,
                  void* stream) {
    const dim3 grid((tokens + kWarpsPerBlock - 1) / kWarpsPerBlock);
    return with_experts_per_lane(experts, [&](auto per_lane) -> int {
        const auto kernel = route_softmax_kernel<T, decltype(per_lane)::value>;
        return LAUNCH(kernel, grid, dim3(kWarp * kWarpsPerBlock), 1, stream, logits, tokens, experts, top_k, renormalize,
                      weights, ids);
    });
}

template <typename T>
int route_grouped_sigmoid(const T* logits, const float* bias, int tokens, int experts, int top_k, int groups,
                          int keep_groups, int renormalize, float scale, float* weights, int* ids, void* stream) {
    const dim3 grid((tokens + kWarpsPerBlock - 1) / kWarpsPerBlock);
    return with_experts_per_lane(experts, [&](auto per_lane) -> int {
        const auto kernel = route_grouped_sigmoid_kernel<T, decltype(per_lane)::value>;
        return LAUNCH(kernel, grid, dim3(kWarp * kWarpsPerBlock), 1, stream, logits, bias, tokens, experts, top_k, groups,
                      keep_groups, renormalize, scale, weights, ids);
    });
}

}  // namespace

// Limits of all routing: experts <= 512, top_k <= 32, groups <= 32. Logits are float32, or bf16 if bfloat16 != 0.
extern "C" int blis_route_softmax(const void* logits, int bfloat16, int tokens, int experts, int top_k, int renormalize,
                                  float* weights, int* ids, void* stream) {
    if (bfloat16) {
        return route_softmax(static_cast<const uint16_t*>(logits), tokens, experts, top_k, renormalize, weights, ids, stream);
    }
    return route_softmax(static_cast<const float*>(logits), tokens, experts, top_k, renormalize, weights, ids, stream);
}

extern "C" int blis_route_grouped_sigmoid(const void* logits, int bfloat16, const float* bias, int tokens, int experts,
                                          int top_k, int groups, int keep_groups, int renormalize, float scale,
                                          float* weights, int* ids, void* stream) {
    if (bfloat16) {
        return route_grouped_sigmoid(static_cast<const uint16_t*>(logits), bias, tokens, experts, top_k, groups,
                                     keep_groups, renormalize, scale, weights, ids, stream);
    }
    return route_grouped_sigmoid(static_cast<const float*>(logits), bias, tokens, experts, top_k, groups, keep_groups,
                                 renormalize, scale, weights, ids, stream);
}

// experts <= 1024; rows has capacity entries, tile_experts capacity / block_m, padded one.
extern "C" int blis_align_experts(const int* ids, int num_rows, int experts, int block_m, int capacity, int* rows,
                                  int* tile_experts, int* padded, void* stream) {
    return LAUNCH(align_experts_kernel, dim3(experts), dim3(kAlignThreads), 1, stream, ids, num_rows, experts, block_m,
                  capacity, rows, tile_experts, padded);
}

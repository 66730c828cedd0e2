// A denoise round of block diffusion: best tokens, which positions take them, who is done. One launch, no host.
//
// A block of threads reads one row of logits once. It then draws a ticket: the block with the last one finds all
// best tokens written, and applies the rule to every diffusion block, a warp for each. The logits are by far the
// most of the work, so that one block of threads at the end costs little.
#include "common.cuh"

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);

struct Rule {
    int mask_id;
    float threshold;
    int at_least;
    int edits;  // 0: never
    float edit_threshold;
    int max_edit_rounds;
    float penalty;  // 0: none
};

// The highest logit so far and the softmax mass relative to it.
struct Best {
    Key key;  // 0: nothing seen
    float mass;
};

__device__ __forceinline__ Best combine(const Best& a, const Best& b) {
    if (a.key == 0) return b;
    if (b.key == 0) return a;
    const bool first = a.key > b.key;
    const Key high = first ? a.key : b.key, low = first ? b.key : a.key;
    const float mass = first ? a.mass : b.mass, rest = first ? b.mass : a.mass;
    return {high, mass + rest * expf(key_value(low) - key_value(high))};
}

// One thread's share of a row; its ids ascend, so the first of equals stays.
struct Share {
    float highest = -INFINITY;
    int id = 0;
    float mass = 0;

    __device__ __forceinline__ void see(float z, int other, const Rule& rule, int64_t before) {
        if (other == rule.mask_id) return;
        if (other == before) z -= rule.penalty;
        if (z > highest) {
            mass = mass * expf(highest - z) + 1;
            highest = z;
            id = other;
        } else if (z > -INFINITY) {
            mass += expf(z - highest);
        }
    }
};

__device__ __forceinline__ Best best_of_row(const float* logits, int vocabulary, const Rule& rule, int64_t before) {
    Share mine;
    const bool aligned = vocabulary % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    const int quads = aligned ? vocabulary / 4 : 0;
    for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
        const float4 z = reinterpret_cast<const float4*>(logits)[quad];
        mine.see(z.x, 4 * quad, rule, before);
        mine.see(z.y, 4 * quad + 1, rule, before);
        mine.see(z.z, 4 * quad + 2, rule, before);
        mine.see(z.w, 4 * quad + 3, rule, before);
    }
    for (int id = 4 * quads + threadIdx.x; id < vocabulary; id += kThreads) mine.see(logits[id], id, rule, before);
    if (mine.highest == -INFINITY) return {0, 0};
    return {make_key(mine.highest, mine.id), mine.mass};
}

// Every thread of the block gets the result, combined in an order that depends on nothing.
__device__ __forceinline__ Best reduce_block(Best mine, Best* shared) {
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
        const Key key = __shfl_xor_sync(kAllLanes, mine.key, offset);
        const float mass = __shfl_xor_sync(kAllLanes, mine.mass, offset);
        mine = combine(mine, {key, mass});
    }
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
    __syncthreads();
    Best all{shared[0].key, shared[0].mass};
    for (int warp = 1; warp < kWarps; ++warp) all = combine(all, {shared[warp].key, shared[warp].mass});
    return all;
}

// The rule on one diffusion block of up to 32 * PER positions: lane l holds l, l + 32, ... .
template <int PER>
__device__ __forceinline__ void apply(int64_t* ids, const uint8_t* answer, const int64_t* tokens, const float* confidence,
                                      int positions, const Rule& rule, int* edit_rounds, uint8_t* done) {
    const int lane = threadIdx.x % kWarp;
    int64_t fresh[PER];
    Key keys[PER];  // confidence of masked positions; 0: not masked
    uint32_t masked = 0, changed = 0, editable = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int position = lane + i * static_cast<int>(kWarp);
        const bool open = position < positions && answer[position] != 0;
        const int64_t old = open ? ids[position] : 0;
        const bool empty = open && old == rule.mask_id;
        fresh[i] = 0, keys[i] = 0;
        if (!empty && !(open && rule.edits)) continue;
        fresh[i] = load_fresh(&tokens[position]);
        const float sure = load_fresh(&confidence[position]);
        if (empty) {
            masked |= 1u << i;
            keys[i] = make_key(sure, position);
            if (sure > rule.threshold) changed |= 1u << i;
        } else if (fresh[i] != old && sure > rule.edit_threshold) {
            editable |= 1u << i;
        }
    }
    uint32_t taken = 0;
    for (int rank = 0; rank < rule.at_least; ++rank) {
        Key best = 0;
#pragma unroll
        for (int i = 0; i < PER; ++i) best = !(taken >> i & 1) && keys[i] > best ? keys[i] : best;
        best = warp_max(best);
        if (best == 0) break;
        const int winner = static_cast<int>(key_id(best));
        if (winner % static_cast<int>(kWarp) == lane) taken |= 1u << (winner / kWarp);
    }
    changed |= taken;
    if (rule.edits) {
        const bool full = __ballot_sync(kAllLanes, masked != 0) == 0;
        const int rounds = *edit_rounds + full;
        __syncwarp();
        if (lane == 0) *edit_rounds = rounds;
        if (!(full && rounds > rule.max_edit_rounds)) changed |= editable;
    }
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        if (changed >> i & 1) ids[lane + i * static_cast<int>(kWarp)] = fresh[i];
    }
    const bool none = __ballot_sync(kAllLanes, changed != 0) == 0;
    if (lane == 0) *done = none;
}

template <int PER>
__global__ void __launch_bounds__(kThreads)
denoise_kernel(int64_t* ids, const uint8_t* answer, const float* logits, const int64_t* rows, int64_t* tokens,
               float* confidence, int* ticket, int* edit_rounds, uint8_t* done, int num_rows, int num_blocks, int positions,
               int vocabulary, int64_t stride, Rule rule) {
    __shared__ Best shared[kWarps];
    __shared__ int last;
    const int row = blockIdx.x;
    if (row < num_rows) {
        const int64_t place = rows[row];
        const int64_t before = rule.penalty != 0 && place % positions > 0 ? ids[place - 1] : -1;
        const Best best = reduce_block(best_of_row(logits + row * stride, vocabulary, rule, before), shared);
        if (threadIdx.x == 0) {
            tokens[place] = best.key == 0 ? 0 : key_id(best.key);
            confidence[place] = best.key == 0 ? 0 : 1 / best.mass;
            __threadfence();  // before the ticket: visible to the block with the last one
        }
    }
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1) == static_cast<int>(gridDim.x) - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int block = threadIdx.x / kWarp; block < num_blocks; block += kWarps) {
        const int64_t first = static_cast<int64_t>(block) * positions;
        apply<PER>(ids + first, answer + first, tokens + first, confidence + first, positions, rule, edit_rounds + block,
                   done + block);
    }
}

}  // namespace

// Rows of logits are `stride` floats apart. `ticket` is 0 before and the number of launched blocks after. `edit_rounds`
// is read only with edits. Up to 128 positions per diffusion block; returns cudaErrorInvalidValue (1) beyond.
extern "C" int blis_denoise(int64_t* ids, const uint8_t* answer, const float* logits, const int64_t* rows, int64_t* tokens,
                            float* confidence, int* ticket, int* edit_rounds, uint8_t* done, int num_rows, int num_blocks,
                            int positions, int vocabulary, int64_t stride, int mask_id, float threshold, int at_least,
                            int edits, float edit_threshold, int max_edit_rounds, float penalty, void* stream) {
    const Rule rule{mask_id, threshold, at_least, edits, edit_threshold, max_edit_rounds, penalty};
    const dim3 grid(num_rows > 0 ? num_rows : 1);
    const auto launch = [&](auto kernel) {
        return LAUNCH(kernel, grid, dim3(kThreads), 1, stream, ids, answer, logits, rows, tokens, confidence, ticket,
                      edit_rounds, done, num_rows, num_blocks, positions, vocabulary, stride, rule);
    };
    if (positions <= 32) return launch(denoise_kernel<1>);
    if (positions <= 64) return launch(denoise_kernel<2>);
    if (positions <= 128) return launch(denoise_kernel<4>);
    return 1;
}

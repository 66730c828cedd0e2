// Sampling: one token per row by bitmask, temperature, top-k, top-p, min-p and Gumbel noise, without a sort.
//
// A cluster of blocks shares a row. The first pass draws: argmax of tempered logit + noise over all allowed tokens.
// Rows without filters are done. The others check the drawn token: what top-k, top-p and min-p keep is everything from
// some logit upwards, so the token is kept iff few enough tokens, and little enough mass, lie strictly above it. If it
// is not, nothing at or below its logit is kept either, and the draw is repeated above it. The same pass over the row
// checks the token, draws the next one, and checks a level halfway up to the maximum besides, which bounds the rounds.
// The token that passes is the argmax over the kept tokens, exactly.
#include "common.cuh"

namespace {

constexpr int kCluster = 8;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);

// The first pass: the draw, and the softmax's scale.
struct Draw {
    Key best;       // argmax of z + noise (of z where greedy)
    float highest;  // maximum of z, the tempered logit
    float mass;     // sum of exp(z - highest)
};

// What lies strictly above a level of z.
struct Above {
    Key best;    // argmax of z + noise
    float mass;  // sum of exp(z - highest)
    int count;
};

// The later passes: above the drawn token, and above the level halfway up.
struct Check {
    Above token, upper;
};

struct Filters {
    int top_k;    // 0: off
    float top_p;  // >= 1: off
    float floor;  // the lowest z that min-p keeps
    float total;  // sum of exp(z - highest) over all allowed tokens

    // Whether a token at this level is kept, given what lies above it.
    __device__ __forceinline__ bool keep(float level, const Above& above) const {
        if (level < floor) return false;
        return above.count == 0 || ((top_k == 0 || above.count < top_k) && (top_p >= 1 || above.mass < top_p * total));
    }
};

struct Row {
    const float* logits;
    const int* bitmask;  // null: everything is allowed
    int vocabulary;
    float temperature;  // 0: greedy
    uint32_t key0, key1, position0, position1;
};

__device__ __forceinline__ Key max_key(Key a, Key b) { return a > b ? a : b; }

// Calls `visit(z, id)` for each allowed token of this thread's share, four neighbours at a time.
template <typename Visit>
__device__ __forceinline__ void for_each_quad(const Row& row, Visit visit) {
    const bool aligned = row.vocabulary % 4 == 0;
    const int quads = (row.vocabulary + 3) / 4;
    for (int quad = blockIdx.x * kThreads + threadIdx.x; quad < quads; quad += kCluster * kThreads) {
        float z[4];
        if (aligned) {
            const float4 four = reinterpret_cast<const float4*>(row.logits)[quad];
            z[0] = four.x, z[1] = four.y, z[2] = four.z, z[3] = four.w;
        } else {
            for (int i = 0; i < 4; ++i) z[i] = 4 * quad + i < row.vocabulary ? row.logits[4 * quad + i] : -INFINITY;
        }
        if (row.bitmask != nullptr) {
            const uint32_t allowed = static_cast<uint32_t>(row.bitmask[quad / 8]) >> (quad % 8 * 4);
            for (int i = 0; i < 4; ++i) z[i] = allowed >> i & 1 ? z[i] : -INFINITY;
        }
        if (row.temperature > 0) {
            for (int i = 0; i < 4; ++i) z[i] /= row.temperature;
        }
        visit(z, quad);
    }
}

__device__ __forceinline__ Words noise_words(const Row& row, int quad) {
    return philox(row.position0, row.position1, static_cast<uint32_t>(quad), 0, row.key0, row.key1);
}

// Combine the partials of a block's threads, then of the cluster's blocks; every thread of the cluster gets the result.
// `combine` is applied in an order that depends on nothing but the vocabulary. `exchange` has two sets of kCluster
// entries used in turn, so that one barrier per call is enough.
template <typename T, typename Combine>
__device__ __forceinline__ T reduce_cluster(T mine, T* shared, T* exchange, int turn, Combine combine) {
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) mine = combine(mine, shuffle_xor(mine, offset));
    __syncthreads();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
    __syncthreads();
    T* slots = exchange + turn % 2 * kCluster;
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < kWarps; ++warp) mine = combine(mine, shared[warp]);
        slots[blockIdx.x] = mine;
    }
    cluster_barrier();
    if (threadIdx.x == 0) {
        mine = load_fresh(&slots[0]);
        for (int block = 1; block < kCluster; ++block) mine = combine(mine, load_fresh(&slots[block]));
        shared[0] = mine;
    }
    __syncthreads();
    return shared[0];
}

__device__ __forceinline__ Draw combine_draws(const Draw& a, const Draw& b) {
    const Key best = max_key(a.best, b.best);
    const float highest = fmaxf(a.highest, b.highest);
    if (highest == -INFINITY) return {best, highest, 0};  // nothing seen, or nothing to scale
    return {best, highest, a.mass * expf(a.highest - highest) + b.mass * expf(b.highest - highest)};
}

__device__ __forceinline__ Above combine_above(const Above& a, const Above& b) {
    return {max_key(a.best, b.best), a.mass + b.mass, a.count + b.count};
}

__device__ __forceinline__ Draw draw(const Row& row, bool filtered) {
    Draw mine{0, -INFINITY, 0};
    for_each_quad(row, [&](const float(&z)[4], int quad) {
        const Words words = row.temperature > 0 ? noise_words(row, quad) : Words{};
        for (int i = 0; i < 4; ++i) {
            if (!(z[i] > -INFINITY)) continue;
            mine.best = max_key(mine.best, make_key(row.temperature > 0 ? z[i] + gumbel(words.word[i]) : z[i], 4 * quad + i));
            if (!filtered) continue;
            if (z[i] > mine.highest) {
                mine.mass = mine.mass * expf(mine.highest - z[i]) + 1;
                mine.highest = z[i];
            } else {
                mine.mass += expf(z[i] - mine.highest);
            }
        }
    });
    return mine;
}

__device__ __forceinline__ Check check(const Row& row, float highest, float level, float upper) {
    Check mine{};
    for_each_quad(row, [&](const float(&z)[4], int quad) {
        if (!(z[0] > level || z[1] > level || z[2] > level || z[3] > level)) return;
        const Words words = noise_words(row, quad);
        for (int i = 0; i < 4; ++i) {
            if (!(z[i] > level)) continue;
            const Above one{make_key(z[i] + gumbel(words.word[i]), 4 * quad + i), expf(z[i] - highest), 1};
            mine.token = combine_above(mine.token, one);
            if (z[i] > upper) mine.upper = combine_above(mine.upper, one);
        }
    });
    return mine;
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads)
sample_kernel(const float* logits, const int* bitmask, int vocabulary, const float* temperatures, const int* top_k,
              const float* top_p, const float* min_p, const int64_t* seeds, const int64_t* positions, Check* exchange,
              int64_t* tokens) {
    __shared__ Draw shared_draws[kWarps];
    __shared__ Check shared_checks[kWarps];
    const int r = blockIdx.y;
    exchange += static_cast<int64_t>(r) * 2 * kCluster;
    Row row;
    row.logits = logits + static_cast<int64_t>(r) * vocabulary;
    row.bitmask = bitmask == nullptr ? nullptr : bitmask + static_cast<int64_t>(r) * ((vocabulary + 31) / 32);
    row.vocabulary = vocabulary;
    row.temperature = temperatures[r];
    row.key0 = static_cast<uint32_t>(seeds[r]);
    row.key1 = static_cast<uint32_t>(seeds[r] >> 32);
    row.position0 = static_cast<uint32_t>(positions[r]);
    row.position1 = static_cast<uint32_t>(positions[r] >> 32);

    const bool limited = (top_k[r] > 0 && top_k[r] < vocabulary) || top_p[r] < 1 || min_p[r] > 0;
    const bool filtered = row.temperature > 0 && limited;
    int turn = 0;
    const Draw drawn = reduce_cluster(draw(row, filtered), shared_draws, reinterpret_cast<Draw*>(exchange), turn, combine_draws);
    Key best = drawn.best;
    if (filtered && best != 0) {
        const Filters filters{top_k[r], top_p[r], drawn.highest + fminf(logf(min_p[r]), 0), drawn.mass};
        const auto combine = [](const Check& a, const Check& b) -> Check {
            return {combine_above(a.token, b.token), combine_above(a.upper, b.upper)};
        };
        float high = drawn.highest;  // a level that is kept
        while (true) {
            // A token below the floor is rejected already: go on from the last level below the floor.
            float level = row.logits[key_id(best)] / row.temperature;
            if (level < filters.floor) level = nextafterf(filters.floor, -INFINITY);
            const float upper = level + (high - level) / 2;
            const Check found =
                reduce_cluster(check(row, drawn.highest, level, upper), shared_checks, exchange, ++turn, combine);
            if (filters.keep(level, found.token)) break;
            if (filters.keep(upper, found.upper)) {
                high = upper;
                best = found.token.best;
            } else {
                best = found.upper.best;
            }
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) tokens[r] = best == 0 ? -1 : static_cast<int64_t>(key_id(best));
}

}  // namespace

// Bytes of scratch memory that blis_sample needs for each row, 16-byte aligned.
extern "C" int blis_sample_scratch_bytes() { return 2 * kCluster * sizeof(Check); }

// Rows are contiguous; with a vocabulary that is a multiple of 4 they are 16-byte aligned. bitmask may be null.
extern "C" int blis_sample(const float* logits, const int* bitmask, int rows, int vocabulary, const float* temperatures,
                           const int* top_k, const float* top_p, const float* min_p, const int64_t* seeds,
                           const int64_t* positions, void* scratch, int64_t* tokens, void* stream) {
    return LAUNCH(sample_kernel, dim3(kCluster, rows), dim3(kThreads), kCluster, stream, logits, bitmask, vocabulary,
                  temperatures, top_k, top_p, min_p, seeds, positions, static_cast<Check*>(scratch), tokens);
}

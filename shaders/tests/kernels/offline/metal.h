// As much of Metal's language as naga writes for the kernels, for a C++ compiler; and a workgroup made of threads.
//
// ThreadSanitizer then sees what invocations of a workgroup do to its memory, and which barriers lie between.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <random>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace metal {

using uint = std::uint32_t;

// Vectors.

template <class T, int N> struct lanes;
template <class T> struct alignas(2 * sizeof(T)) lanes<T, 2> { T x, y; };
template <class T> struct alignas(4 * sizeof(T)) lanes<T, 3> { T x, y, z; };
template <class T> struct alignas(4 * sizeof(T)) lanes<T, 4> { T x, y, z, w; };

template <class T, int N> struct vec : lanes<T, N> {
    vec() = default;
    vec(T value) {
        for (int i = 0; i < N; i++) (*this)[i] = value;
    }
    template <class U> explicit vec(const vec<U, N> &other) {
        for (int i = 0; i < N; i++) (*this)[i] = T(other[i]);
    }
    template <class... U>
        requires(sizeof...(U) == N)
    vec(U... values) : lanes<T, N>{T(values)...} {}
    vec(const vec<T, 2> &a, const vec<T, 2> &b)
        requires(N == 4)
        : lanes<T, N>{a.x, a.y, b.x, b.y} {}
    vec<T, 2> xz_() const { return {this->x, this->z}; }
    T &operator[](int i) { return (&this->x)[i]; }
    const T &operator[](int i) const { return (&this->x)[i]; }
};

using bool2 = vec<bool, 2>;
using bool3 = vec<bool, 3>;
using bool4 = vec<bool, 4>;
using int2 = vec<int, 2>;
using int3 = vec<int, 3>;
using int4 = vec<int, 4>;
using uint2 = vec<uint, 2>;
using uint3 = vec<uint, 3>;
using uint4 = vec<uint, 4>;
using float2 = vec<float, 2>;
using float3 = vec<float, 3>;
using float4 = vec<float, 4>;

// A function of numbers, lane by lane.
template <class F, class T, int N, class... Rest>
auto each(F function, const vec<T, N> &first, const Rest &...rest) {
    vec<decltype(function(first[0], rest[0]...)), N> made;
    for (int i = 0; i < N; i++) made[i] = function(first[i], rest[i]...);
    return made;
}

// What `scalar` says of numbers, and the same for vectors.
#define LANES_OF_ONE(name, scalar)                                                                                        \
    template <class T> requires std::is_arithmetic_v<T> auto name(T a) { return scalar; }                                 \
    template <class T, int N> auto name(const vec<T, N> &v) {                                                             \
        return each([](T a) { return name(a); }, v);                                                                      \
    }
#define LANES_OF_TWO(name, scalar)                                                                                        \
    template <class T> requires std::is_arithmetic_v<T> T name(T a, std::type_identity_t<T> b) { return scalar; }         \
    template <class T, int N> auto name(const vec<T, N> &v, const std::type_identity_t<vec<T, N>> &w) {                   \
        return each([](T a, T b) { return name(a, b); }, v, w);                                                           \
    }
LANES_OF_ONE(abs, a < 0 ? -a : a)
LANES_OF_ONE(clz, T(std::countl_zero(a)))
LANES_OF_ONE(exp, std::exp(a))
LANES_OF_ONE(log, std::log(a))
LANES_OF_ONE(rint, std::nearbyint(a))
LANES_OF_ONE(sign, T((a > 0) - (a < 0)))
LANES_OF_ONE(sqrt, std::sqrt(a))
LANES_OF_TWO(max, a < b ? b : a)
LANES_OF_TWO(min, b < a ? b : a)

template <class T> T clamp(const T &a, const std::type_identity_t<T> &low, const std::type_identity_t<T> &high) {
    return min(max(a, low), high);
}

template <class T> T select(const T &no, const std::type_identity_t<T> &yes, bool condition) {
    return condition ? yes : no;
}
template <class T, int N>
vec<T, N> select(const vec<T, N> &no, const std::type_identity_t<vec<T, N>> &yes, const vec<bool, N> &condition) {
    return each([](T no, T yes, bool condition) { return condition ? yes : no; }, no, yes, condition);
}

// An operator between vectors, and between a vector and a number.
#define OPERATOR(op)                                                                                                      \
    template <class T, class U, int N> auto operator op(const vec<T, N> &v, const vec<U, N> &w) {                         \
        using Lane = std::conditional_t<std::is_same_v<T, bool>, bool, decltype(v[0] op w[0])>;                           \
        return each([](T a, U b) { return Lane(a op b); }, v, w);                                                         \
    }                                                                                                                     \
    template <class T, int N> auto operator op(const vec<T, N> &v, std::type_identity_t<T> b) {                           \
        return v op vec<T, N>(b);                                                                                         \
    }                                                                                                                     \
    template <class T, int N> auto operator op(std::type_identity_t<T> a, const vec<T, N> &w) {                           \
        return vec<T, N>(a) op w;                                                                                         \
    }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
OPERATOR(%)
OPERATOR(&)
OPERATOR(|)
OPERATOR(^)
OPERATOR(<<)
OPERATOR(>>)
OPERATOR(<)
OPERATOR(<=)
OPERATOR(>)
OPERATOR(>=)
OPERATOR(==)
OPERATOR(!=)
OPERATOR(&&)
OPERATOR(||)
template <class T, int N> vec<T, N> operator-(const vec<T, N> &v) { return T(0) - v; }

template <int N> bool all(const vec<bool, N> &v) {
    bool every = true;
    for (int i = 0; i < N; i++) every = every && v[i];
    return every;
}
template <int N> float dot(const vec<float, N> &v, const vec<float, N> &w) {
    float sum = 0;
    for (int i = 0; i < N; i++) sum += v[i] * w[i];
    return sum;
}

// Matrices, as columns.

struct float4x4 {
    float4 columns[4];
    float4x4() = default;
    float4x4(const float4 &a, const float4 &b, const float4 &c, const float4 &d) : columns{a, b, c, d} {}
    float4 &operator[](int i) { return columns[i]; }
    const float4 &operator[](int i) const { return columns[i]; }
};

inline float4x4 operator+(const float4x4 &a, const float4x4 &b) {
    return {a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]};
}
inline float4x4 operator*(const float4x4 &a, float b) { return {a[0] * b, a[1] * b, a[2] * b, a[3] * b}; }
inline float4x4 operator*(float a, const float4x4 &b) { return b * a; }
inline float4 operator*(const float4x4 &a, const float4 &b) {
    return a[0] * b.x + a[1] * b.y + a[2] * b.z + a[3] * b.w;
}
inline float4 operator*(const float4 &a, const float4x4 &b) {
    return {dot(a, b[0]), dot(a, b[1]), dot(a, b[2]), dot(a, b[3])};
}
inline float4x4 operator*(const float4x4 &a, const float4x4 &b) { return {a * b[0], a * b[1], a * b[2], a * b[3]}; }
inline float4x4 transpose(const float4x4 &a) {
    float4x4 made;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) made[i][j] = a[j][i];
    return made;
}

// Atomics. Invocations may change one at the same time by a maximum. Storing and loading are ordinary accesses here: a kernel
// means them to be before or after all others, so a missing barrier is found.

struct atomic_uint {
    uint value;
};
enum { memory_order_relaxed };

inline void atomic_store_explicit(atomic_uint *at, uint value, int) { at->value = value; }
inline uint atomic_load_explicit(const atomic_uint *at, int) { return at->value; }
inline uint atomic_fetch_max_explicit(atomic_uint *at, uint value, int) {
    uint found = __atomic_load_n(&at->value, __ATOMIC_RELAXED);
    while (found < value &&
           !__atomic_compare_exchange_n(&at->value, &found, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return found;
}

// Workgroups.

enum mem_flags { mem_none, mem_device, mem_threadgroup };

// Two in turn: with one, a thread that wakes up late would seem to have waited for what others did before they reached the
// next one, and ThreadSanitizer would miss races.
inline pthread_barrier_t barriers[2];
inline thread_local int passed;
inline void wait_for_all() {
    pthread_barrier_wait(&barriers[passed++ % 2]);
    // Then in another order each time: ThreadSanitizer remembers only the latest accesses to a number.
    thread_local std::minstd_rand random(std::hash<std::thread::id>()(std::this_thread::get_id()));
    usleep(random() % 200);
}
inline void threadgroup_barrier(mem_flags) { wait_for_all(); }

// Halves.

inline float number(std::uint16_t half) {
    uint sign = half >> 15, field = half >> 10 & 31, fraction = half & 1023;
    float magnitude = field == 31  ? (fraction ? NAN : INFINITY)
                      : field == 0 ? std::ldexp(float(fraction), -24)
                                   : std::ldexp(float(1024 + fraction), int(field) - 25);
    return sign ? -magnitude : magnitude;
}
struct half2 {
    std::uint16_t x, y;
    operator float2() const { return {number(x), number(y)}; }
};

} // namespace metal

template <class T, class U> T as_type(const U &value) {
    static_assert(sizeof(T) == sizeof(U));
    T made;
    std::memcpy(&made, &value, sizeof made);
    return made;
}

// Where an invocation is, and what is bound.
struct Invocation {
    metal::uint3 group, groups;
    metal::uint local;
    char *const *buffers;
    char *const *memory;
};

// A buffer, as whatever type a kernel takes it for.
struct Bound {
    char *at;
    template <class T> operator T &() const { return *reinterpret_cast<T *>(at); }
};

// In place of the sizes of arrays, which no kernel asks for.
inline char nothing[256];

// Reads launches from one file, each the workgroups along each axis, and the buffers as bytes after their length; and writes
// the buffers to the other file after each. Invocations of a workgroup are threads; workgroups run one after the other.
inline int run_launches(metal::uint invocations, std::vector<metal::uint> memory_bytes, void (*invoke)(const Invocation &),
                        char **files) {
    // No kernel takes that long; but one that is broken may wait forever.
    alarm(300);
    std::FILE *in = std::fopen(files[1], "rb"), *out = std::fopen(files[2], "wb");
    if (!in || !out) return 1;
    auto read = [in] {
        metal::uint word = 0;
        if (std::fread(&word, sizeof word, 1, in) != 1) std::exit(2);
        return word;
    };
    for (metal::uint launches = read(); launches > 0; launches--) {
        // Braces, so that they are read in this order.
        metal::uint3 groups{read(), read(), read()};
        std::vector<metal::uint> bytes(read());
        std::vector<char *> buffers, memory;
        for (auto &count : bytes) {
            buffers.push_back(static_cast<char *>(std::aligned_alloc(16, (count = read()) + 16 & ~15u)));
            if (std::fread(buffers.back(), 1, count, in) != count) return 2;
        }
        for (auto count : memory_bytes) memory.push_back(static_cast<char *>(std::aligned_alloc(16, count + 16 & ~15u)));
        for (auto &barrier : metal::barriers) pthread_barrier_init(&barrier, nullptr, invocations);
        auto invocation = [&](metal::uint local) {
            for (metal::uint number = 0; number < groups.x * groups.y * groups.z; number++) {
                // Nothing clears a workgroup's memory: here it holds what are no numbers.
                if (local == 0)
                    for (size_t i = 0; i < memory.size(); i++) std::memset(memory[i], 0xff, memory_bytes[i]);
                metal::wait_for_all();
                metal::uint3 group(number % groups.x, number / groups.x % groups.y, number / (groups.x * groups.y));
                invoke({group, groups, local, buffers.data(), memory.data()});
                metal::wait_for_all();
            }
        };
        std::vector<std::thread> threads;
        for (metal::uint local = 0; local < invocations; local++) threads.emplace_back(invocation, local);
        for (auto &thread : threads) thread.join();
        for (size_t i = 0; i < buffers.size(); i++) {
            std::fwrite(buffers[i], 1, bytes[i], out);
            std::free(buffers[i]);
        }
        for (auto *at : memory) std::free(at);
    }
    return std::fclose(out) == 0 ? 0 : 3;
}

// naga leaves these without their namespace.
using metal::float2;
using metal::half2;
using metal::uint2;
using metal::uint4;

#define constant const
#define device
#define kernel
#define thread
#define threadgroup
#define xz xz_()

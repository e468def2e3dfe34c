// SPDX-License-Identifier: Apache-2.0
// The transformer through the engine beside the same kernels in a plain loop, in bf16, and what
// share of the GPU's matrix products that is. Prints lines of a table; one that misses what is
// promised is marked, and is no failure. Losses that differ are.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/cuda/gpus.hpp>
#include <stagger/cuda/stream.hpp>
#include <stagger/stagger.hpp>

#include "layers/by_work.hpp"
#include "plain_loop.hpp"
#include "skip.hpp"
#include "table.hpp"

// Linked with --wrap: what the engine asks of the runtime is counted on its way there.
namespace {
unsigned long events_made = 0;
unsigned long allocations = 0;
unsigned long synchronisations = 0;
}  // namespace

extern "C" {
cudaError_t __real_cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ++events_made;
  return __real_cudaEventCreateWithFlags(event, flags);
}
cudaError_t __real_cudaMalloc(void**, std::size_t);
cudaError_t __wrap_cudaMalloc(void** memory, std::size_t bytes) {
  ++allocations;
  return __real_cudaMalloc(memory, bytes);
}
cudaError_t __real_cudaMallocHost(void**, std::size_t);
cudaError_t __wrap_cudaMallocHost(void** memory, std::size_t bytes) {
  ++allocations;
  return __real_cudaMallocHost(memory, bytes);
}
cudaError_t __real_cudaMallocFromPoolAsync(void**, std::size_t, cudaMemPool_t, cudaStream_t);
cudaError_t __wrap_cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream) {
  ++allocations;
  return __real_cudaMallocFromPoolAsync(memory, bytes, pool, stream);
}
cudaError_t __real_cudaStreamSynchronize(cudaStream_t);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  ++synchronisations;
  return __real_cudaStreamSynchronize(stream);
}
}

namespace {

namespace sg = stagger;
namespace gpu = gpt::gpu;
using Half = __nv_bfloat16;

struct Sizes {
  std::int64_t layers = 8;
  std::int64_t width = 2048;
  std::int64_t heads = 16;
  std::int64_t context = 1024;
  std::int64_t sequences = 0;  // of a microbatch; 0: as the GPU's memory has room
  std::int64_t microbatches = 16;
  std::int64_t rounds = 11;
};

constexpr std::uint64_t seed = 1;
constexpr double clip = 1;
constexpr sg::optimizer::AdamW rule{.rate = 1e-4, .beta2 = 0.98, .weight_decay = 0.05};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

gpt::ModelShape shape_of(Sizes const& s) { return {s.layers, s.width, s.heads, s.context}; }

/// Random bytes: what they are changes no time.
gpu::DeviceBatch random_batch(Sizes const& s) {
  gpt::Batch batch;
  auto const count = static_cast<std::size_t>(s.microbatches);
  auto const fill = [&](std::vector<gpt::Tokens>& all, std::uint64_t what) {
    for (std::size_t m = 0; m < count; ++m) {
      all.emplace_back(std::initializer_list<std::size_t>{static_cast<std::size_t>(s.sequences),
                                                          static_cast<std::size_t>(s.context)});
      for (std::size_t i = 0; i < all.back().size(); ++i)
        all.back()[i] = static_cast<std::uint8_t>(sg::random_bits(seed, {what, m, i}) % 256);
    }
  };
  fill(batch.inputs, 0);
  fill(batch.targets, 1);
  gpu::DeviceBatch on_device;
  gpu::upload(batch, on_device);
  return on_device;
}

auto through_engine(Sizes const& s, int stages, sg::cuda::GraphCounts* counts, bool capture,
                    std::shared_ptr<gpu::Workspaces<Half>> const& workspaces) {
  sg::cuda::Gpus device;
  device.devices = {0};
  device.capture = capture;
  device.counts = counts;
  device.kernels = &sg::cuda::parameter_kernels;
  return sg::Pipeline{gpu::make_model<Half>(shape_of(s), seed, workspaces)}.with(
      layers::ByWork{gpt::work_of(shape_of(s)), stages}, plain::Adam{rule},
      gpu::CrossEntropy<Half>(workspaces), device,
      sg::Options{.clip_norm = clip, .deadline_s = 120});
}

/// Operations that training a token takes: products of weights and of attention, at full context,
/// forward and twice that backward. What is computed and masked counts too.
double operations_of_a_token(Sizes const& s) {
  auto const width = static_cast<double>(s.width);
  return static_cast<double>(s.layers) *
             (72 * width * width + 12 * static_cast<double>(s.context) * width) +
         6 * 256 * width;
}

/// Operations per second of the model's products with weights, back to back on one stream: all of
/// them in their share, and the fastest.
struct Ceiling {
  double all = 0;
  double fastest = 0;
};
Ceiling ceiling(Sizes const& s, gpu::Workspaces<Half>& workspaces) {
  sg::cuda::Stream const stream;
  auto const pool = std::make_shared<sg::cuda::Pool>();
  sg::cuda::detail::AtPlace const here({stream.get(), &pool, nullptr});
  auto& workspace = workspaces.current();
  auto const rows = static_cast<std::size_t>(s.sequences * s.context);
  auto const width = static_cast<std::size_t>(s.width);
  sg::cuda::Tensor<Half> in({rows, 4 * width});
  sg::cuda::Tensor<Half> weight({width, 4 * width});
  sg::cuda::Tensor<Half> out({rows, 4 * width});
  sg::cuda::Tensor<float> gradient({width, 4 * width});
  for (auto* tensor : {&in, &weight, &out})
    sg::cuda::check(
        cudaMemsetAsync(tensor->data(), 0x3c, tensor->size() * sizeof(Half), stream.get()),
        "set up a product");
  sg::cuda::check(
      cudaMemsetAsync(gradient.data(), 0, gradient.size() * sizeof(float), stream.get()),
      "set up a product");
  sg::cuda::TimedEvent start;
  sg::cuda::TimedEvent end;
  constexpr int turns = 10;
  Ceiling result;
  double operations = 0;
  double seconds = 0;
  auto const time = [&](std::size_t inputs, std::size_t outputs, auto product) {
    for (int i = 0; i < 3; ++i) product();
    start.record(stream);
    for (int i = 0; i < turns; ++i) product();
    end.record(stream);
    sg::cuda::check(cudaStreamSynchronize(stream.get()), "multiply matrices");
    double const done =
        2.0 * turns * static_cast<double>(rows) * static_cast<double>(inputs * outputs);
    double const took_s = end.seconds_since(start);
    operations += done;
    seconds += took_s;
    result.fastest = std::max(result.fastest, done / took_s);
  };
  using Read = gpu::Matrix<Half const>;
  for (auto const& [inputs, outputs] : {std::pair{width, 3 * width}, std::pair{width, width},
                                        std::pair{width, 4 * width}, std::pair{4 * width, width}}) {
    std::size_t const n = inputs;
    std::size_t const k = outputs;
    time(n, k, [&] {  // forward
      workspace.product(Read{in.data(), n}, Read{weight.data(), k},
                        gpu::Matrix<Half>{out.data(), k}, rows, k, n, 1, 1);
    });
    time(n, k, [&] {  // what reaches the input
      workspace.product(Read{out.data(), k}, Read{weight.data(), k}.transposed(),
                        gpu::Matrix<Half>{in.data(), n}, rows, n, k, 1, 0);
    });
    time(n, k, [&] {  // what reaches the weight
      workspace.product(Read{in.data(), n}.transposed(), Read{out.data(), k},
                        gpu::Matrix<float>{gradient.data(), k}, n, k, rows, 1, 1);
    });
  }
  result.all = operations / seconds;
  return result;
}

/// Takes steps in turns, so that all have the same clocks of the same GPU.
struct Timed {
  std::vector<double> plain_s, one_s, captured_s, four_s;
};

/// |a - b| / |b|
double distance(double a, double b) { return std::abs(a - b) / std::abs(b); }

int measure(Sizes const& s) {
  auto const of_plain = std::make_shared<gpu::Workspaces<Half>>(gpu::Precision::bf16);
  auto const of_one = std::make_shared<gpu::Workspaces<Half>>(gpu::Precision::bf16);
  auto const of_captured = std::make_shared<gpu::Workspaces<Half>>(gpu::Precision::bf16);
  auto const of_four = std::make_shared<gpu::Workspaces<Half>>(gpu::Precision::bf16);
  auto const batch = random_batch(s);
  plain::Loop<Half> loop(shape_of(s), seed, plain::Adam{rule}, clip,
                         static_cast<std::size_t>(s.microbatches), of_plain);
  sg::cuda::GraphCounts counts;
  sg::cuda::GraphCounts of_four_counts;
  auto one = through_engine(s, 1, nullptr, false, of_one);
  auto captured = through_engine(s, 1, &counts, true, of_captured);
  auto four = through_engine(s, 4, &of_four_counts, true, of_four);

  Timed times;
  constexpr int settling = 3;
  unsigned long made = 0;
  unsigned long taken = 0;
  unsigned long waited = 0;
  double farthest = 0;
  for (int round = 0; round < settling + static_cast<int>(s.rounds); ++round) {
    double const begin_s = now_s();
    auto const expected = loop.step(batch);
    double const plain_s = now_s();
    auto const before = std::array{events_made, allocations, synchronisations};
    auto const by_one = sg::run(one.step(batch));
    double const one_s = now_s();
    auto const by_graph = sg::run(captured.step(batch));
    double const captured_s = now_s();
    auto const by_four = sg::run(four.step(batch));
    double const four_s = now_s();
    for (auto const& [metrics, who] :
         {std::pair{by_one, "1 stage"}, std::pair{by_graph, "1 stage as a graph"},
          std::pair{by_four, "4 stages"}}) {
      double const apart = std::max(distance(metrics.loss, expected.loss),
                                    distance(metrics.gradient_norm, expected.norm));
      farthest = std::max(farthest, apart);
      if (apart <= 2e-2) continue;
      std::printf(
          "throughput: %s: step %d has loss %.9g and norm %.9g, the plain loop %.9g and %.9g\n",
          who, round + 1, metrics.loss, metrics.gradient_norm, expected.loss, expected.norm);
      return 1;
    }
    if (round < settling) continue;
    made += events_made - before[0];
    taken += allocations - before[1];
    waited += synchronisations - before[2];
    times.plain_s.push_back(plain_s - begin_s);
    times.one_s.push_back(one_s - plain_s);
    times.captured_s.push_back(captured_s - one_s);
    times.four_s.push_back(four_s - captured_s);
  }

  double const plain_s = table::median(times.plain_s);
  double const tokens = static_cast<double>(s.microbatches * s.sequences * s.context);
  auto const line = [&](std::string const& what, std::vector<double> const& seconds, double must) {
    double const median_s = table::median(seconds);
    double const share = plain_s / median_s;
    table::row(what,
               table::number(share * 100, "%") + "; " + table::number(median_s * 1e3, "ms") +
                   " against " + table::number(plain_s * 1e3, "ms"),
               "at least " + table::number(must * 100, "%"), share >= must);
  };
  std::string const model = "gpt in bf16, width " + std::to_string(s.width) + ", context " +
                            std::to_string(s.context) + ", " + std::to_string(s.layers) +
                            " layers, M=" + std::to_string(s.microbatches);
  line(model + ": throughput of 1 stage over a plain loop's", times.one_s, 0.99);
  line("the same, captured", times.captured_s, 0.99);
  line("the same, 4 stages on one GPU, captured", times.four_s, 0.95);
  table::row("events made, allocations, synchronisations in " + std::to_string(s.rounds) +
                 " steps of all three",
             std::to_string(made) + ", " + std::to_string(taken) + ", " + std::to_string(waited),
             "0, 0, 0", made + taken + waited == 0);
  table::row("loss and norm of every step beside the plain loop's",
             farthest == 0 ? "the same bits" : table::number(farthest, "apart"), "none", true);
  auto const found = ceiling(s, *of_plain);
  double const rate = tokens * operations_of_a_token(s) / table::median(times.one_s);
  table::row("operations of the model per second, 1 stage, beside its products alone",
             table::number(rate * 1e-12, "TFLOP/s") + ", " +
                 table::number(100 * rate / found.all, "%") + " of " +
                 table::number(found.all * 1e-12, "TFLOP/s") + " (fastest shape " +
                 table::number(found.fastest * 1e-12, "TFLOP/s") + ")",
             "none", true);
  return 0;
}

bool read(Sizes& s, int argc, char** argv) {
  struct Flag {
    char const* name;
    std::int64_t* value;
  };
  Flag const flags[] = {{"--layers", &s.layers},       {"--width", &s.width},
                        {"--heads", &s.heads},         {"--context", &s.context},
                        {"--sequences", &s.sequences}, {"--microbatches", &s.microbatches},
                        {"--rounds", &s.rounds}};
  for (int a = 1; a < argc; a += 2) {
    bool known = false;
    for (auto const& flag : flags)
      if (std::strcmp(argv[a], flag.name) == 0 && a + 1 < argc) {
        *flag.value = std::atoll(argv[a + 1]);
        known = *flag.value > 0;
      }
    if (!known) {
      std::printf("throughput: '%s' is no flag with a positive number behind it\n", argv[a]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  if (!read(sizes, argc, argv)) return 2;
  if (no_gpu()) return 0;
  try {
    auto const device = sg::cuda::select_device(0);
    if (sizes.sequences == 0) sizes.sequences = device.free_bytes >> 30U < 100 ? 4 : 8;
    std::printf("%s, %d multiprocessors, %.0f GiB; medians of %lld\n\n%s", device.name.c_str(),
                device.multiprocessors, static_cast<double>(device.total_bytes >> 30U),
                static_cast<long long>(sizes.rounds), table::head);
    return measure(sizes);
  } catch (std::exception const& error) {
    std::printf("throughput: %s\n", error.what());
    return 1;
  }
}

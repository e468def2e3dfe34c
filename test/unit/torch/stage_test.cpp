// SPDX-License-Identifier: Apache-2.0
// Modules of libtorch in a pipeline beside an ordinary loop: one graph over all layers, one
// backward() for each microbatch.
#include <stagger/torch/stage.hpp>

#include "catch.hpp"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <stagger/core/content_digest.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/torch/dropout.hpp>
#include <stagger/train/checkpoint.hpp>
#include <stagger/train/pipeline.hpp>

#include "temporary_folder.hpp"

#undef CHECK  // libtorch's, which Catch2 would not see: here every check is a REQUIRE

namespace torch_stage_test {

namespace {

namespace sg = stagger;
namespace nn = torch::nn;
using at::Tensor;
using sg::torch::Value;
using Stages = std::vector<sg::torch::Stage>;
using Data = sg::Batch<Value, Value>;

/// libtorch computes on one thread for each of the engine's, as in a program that trains.
bool const one_thread = (at::set_num_threads(1), true);

constexpr std::uint64_t run_seed = 5;
sg::optimizer::AdamW const adam{.rate = 1e-2, .weight_decay = 0.1};

Tensor mean_square(Tensor const& y, Tensor const& target) { return (y - target).pow(2).mean(); }
sg::torch::Loss loss() { return sg::torch::Loss{mean_square}; }

/// Attention and a perceptron, with the dropout of libtorch.
struct BlockImpl : nn::Cloneable<BlockImpl> {
  static constexpr std::int64_t width = 16;
  static constexpr std::int64_t heads = 2;
  nn::LayerNorm first{nullptr}, second{nullptr};
  nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  nn::Dropout drop{nullptr};
  BlockImpl() { reset(); }
  void reset() override {
    first = register_module("first", nn::LayerNorm(nn::LayerNormOptions({width})));
    second = register_module("second", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
    drop = register_module("drop", nn::Dropout(0.1));
  }
  Tensor forward(Tensor x) {
    auto const n = x.size(0), t = x.size(1);
    auto const parts = qkv(first(x)).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    auto const qkvs = parts.unbind(0);
    auto const scores =
        qkvs[0].matmul(qkvs[1].transpose(-2, -1)) / std::sqrt(double(width / heads));
    auto const mixed = scores.softmax(-1).matmul(qkvs[2]).transpose(1, 2).reshape({n, t, width});
    x = x + drop(out(mixed));
    return x + down(at::gelu(up(second(x)), "tanh"));
  }
};
TORCH_MODULE(Block);

/// A module whose forward is a function; of a tensor, and of a parameter if it has one.
struct CallImpl : nn::Cloneable<CallImpl> {
  using Call = std::function<Tensor(Tensor, Tensor const&)>;
  Call call;
  std::int64_t size;
  Tensor weight;
  explicit CallImpl(Call of, std::int64_t count = 0) : call(std::move(of)), size(count) { reset(); }
  void reset() override {
    if (size != 0) weight = register_parameter("weight", at::full({size, size}, 0.25));
  }
  Tensor forward(Tensor x) { return call(std::move(x), weight); }
};
TORCH_MODULE(Call);

/// As many are written: it registers its modules when it is made, and has no clone().
struct NoCloneImpl : nn::Module {
  nn::Linear inner = register_module("inner", nn::Linear(8, 8));
  Tensor forward(Tensor x) { return inner(std::move(x)); }
};
TORCH_MODULE(NoClone);

using Layers = std::vector<nn::Sequential>;

Layers make(std::string const& what) {
  at::manual_seed(3);
  Layers all;
  for (int l = 0; l < 8; ++l) {
    if (what == "dropout")
      all.emplace_back(nn::Linear(24, 24), nn::Tanh(), sg::torch::Dropout(0.25));
    if (what == "transformer") all.emplace_back(Block());
    if (what == "batch norm")
      all.emplace_back(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)), nn::BatchNorm2d(4),
                       nn::GELU());
  }
  if (what != "odd") return all;
  auto const call = [](CallImpl::Call of, std::int64_t size = 0) {
    return Call(std::move(of), size);
  };
  all.emplace_back(nn::Linear(8, 8));
  // A parameter that is used twice, and one behind a chain of its own.
  all.emplace_back(call([](Tensor x, Tensor const& w) { return x.mm(w).tanh().mm(w.tanh()); }, 8));
  // Views of the input, and the input itself.
  all.emplace_back(call([](Tensor x, Tensor const&) { return x.view({2, -1}).t(); }));
  all.emplace_back(call([](Tensor x, Tensor const&) { return x; }));
  // Several results of one node; a part of the input is not used.
  all.emplace_back(call(
      [](Tensor x, Tensor const& w) {
        auto const parts = x.t().reshape({-1, 8}).mm(w).split(4, 1);
        return at::cat({parts[1], parts[1] * parts[1]}, 1);
      },
      8));
  // Parameters beside the chain alone, and an end that is a sum.
  all.emplace_back(call([](Tensor x, Tensor const& w) { return x * 2 + w.sum(); }, 8));
  all.emplace_back(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8));
  // A write of the input into a part of what is made from a parameter.
  all.emplace_back(call(
      [](Tensor x, Tensor const& w) {
        Tensor y = w.sum(0).repeat({x.size(0), 1});
        y.slice(1, 2, 6).add_(x.slice(1, 0, 4));
        return y * x;
      },
      8));
  // Complex values between layers.
  all.emplace_back(call(
      [](Tensor x, Tensor const&) { return at::view_as_complex(x.reshape({-1, 4, 2})).conj(); }));
  all.emplace_back(
      call([](Tensor x, Tensor const&) { return at::view_as_real(x * x).reshape({-1, 8}); }));
  all.emplace_back(nn::Identity());
  return all;
}

Tensor input(std::string const& what) {
  if (what == "transformer") return at::randn({2, 6, BlockImpl::width});
  if (what == "batch norm") return at::randn({3, 4, 5, 5});
  return at::randn({4, what == "odd" ? 8 : 24});
}
Data batch_of(std::string const& what, int microbatches = 8) {
  at::manual_seed(7);
  Data batch;
  for (int m = 0; m < microbatches; ++m) {
    batch.inputs.emplace_back(input(what));
    batch.targets.emplace_back(input(what).mul(0.3));
  }
  return batch;
}

/// The ordinary loop.
struct Plain {
  Layers layers;
  std::vector<Tensor> parameters;
  std::vector<std::vector<float>> first, second;  // the optimizer's state
  std::int64_t steps = 0;

  explicit Plain(Layers given) : layers(std::move(given)) {
    for (auto& layer : layers)
      for (auto& parameter : layer->parameters()) {
        parameters.push_back(parameter);
        first.emplace_back(parameter.numel());
        second.emplace_back(parameter.numel());
      }
  }
  double step(Data const& batch, bool own_draws) {
    double terms = 0;
    for (Tensor const& target : batch.targets) terms += static_cast<double>(target.size(0));
    double sum = 0;
    for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
      Tensor x = batch.inputs[m];
      for (std::size_t l = 0; l < layers.size(); ++l) {
        // Of each forward, and with the dropout of stages of its only draw.
        auto const seed = sg::random_bits(run_seed, {std::uint64_t(steps), m, l});
        at::manual_seed(own_draws ? sg::random_bits(seed, {0}) : seed);
        x = layers[l]->forward(x);
      }
      Tensor const mean = mean_square(x, batch.targets[m]);
      auto const rows = static_cast<double>(batch.targets[m].tensor().size(0));
      mean.backward(at::full_like(mean, 1 / terms * rows));
      sum += mean.item<double>() * rows;
    }
    ++steps;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor const& p = parameters[i];
      if (!p.grad().defined()) continue;
      auto* const values = p.data_ptr<float>();
      sg::OptimizerView<float> view{.value = values,
                                    .next = values,
                                    .gradient = p.grad().data_ptr<float>(),
                                    .state = {first[i].data(), second[i].data()},
                                    .size = std::size_t(p.numel())};
      adam.update(view, 1.0, steps);
      p.grad().zero_();
    }
    return sum / terms;
  }
};

Stages stages_of(Layers const& layers) {
  Stages all;
  for (auto const& layer : layers) all.emplace_back(layer);
  return all;
}

template <class... P> auto pipeline(Stages stages, int count, P... policy) {
  return sg::Pipeline{sg::Sequential{std::move(stages)}}.with(sg::partition::Even{.stages = count},
                                                              loss(), adam, std::move(policy)...);
}

bool same(std::span<float const> values, Tensor const& tensor) {
  return std::ssize(values) == tensor.numel() &&
         std::memcmp(values.data(), tensor.const_data_ptr(), values.size_bytes()) == 0;
}

/// Steps of both; losses and all parameters must be equal.
template <class Train>
void check_same_bits(Train& train, Plain& plain, Data const& batch, bool own) {
  for (int step = 0; step < 2; ++step) {
    double const expected = plain.step(batch, own);
    REQUIRE(sg::run(train.step(batch)).loss == expected);
  }
  auto const states = train.parameters();
  REQUIRE(states.size() == plain.parameters.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    CAPTURE(states[i].name);
    REQUIRE(same(states[i].template values<float>(), plain.parameters[i]));
  }
}

template <class Schedule>
void check_bits(std::string const& what, Schedule schedule, sg::Options options = {}) {
  auto const batch = batch_of(what);
  for (int const ranks : {1, 2, 4}) {
    CAPTURE(what, ranks);
    int const stages = ranks * schedule.chunks();
    Plain plain(make(what));
    options.seed = run_seed;
    auto train =
        pipeline(stages_of(make(what)), stages, schedule, sg::host::Threads{ranks}, options);
    check_same_bits(train, plain, batch, what == "dropout");
  }
}

template <class Model> std::string refusal(Model make_model) {
  try {
    make_model();
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "";
}

/// What a step says of a layer behind a linear one.
template <class Given> std::string said_by(Given given) {
  Stages stages;
  stages.emplace_back(nn::Linear(8, 8));
  stages.emplace_back(given);
  auto train = pipeline(std::move(stages), 2, sg::host::Threads{2});
  return refusal([&] { sg::run(train.step(batch_of("odd", 2))); });
}

}  // namespace

TEST_CASE("torch/Stage: every schedule has the bits of an ordinary loop", "[torch]") {
  for (std::string const what : {"dropout", "transformer", "odd"}) {
    check_bits(what, sg::schedule::GPipe{});
    check_bits(what, sg::schedule::OneFOneB{});
    check_bits(what, sg::schedule::ZeroBubbleH1{});
    check_bits(what, sg::schedule::Interleaved{});
  }
}

TEST_CASE("torch/Stage: repeated forwards draw the same numbers and count once in statistics",
          "[torch]") {
  for (std::string const what : {"dropout", "batch norm"}) {
    sg::Options options{.seed = run_seed, .recompute = true, .check_recompute = true};
    Plain plain(make(what));
    auto const batch = batch_of(what);
    auto train = pipeline(stages_of(make(what)), 2, sg::host::Threads{2}, options);
    check_same_bits(train, plain, batch, what == "dropout");
    // Outputs in eval mode depend on the running statistics.
    std::vector<Value> outputs(2);
    sg::run(train.predict(std::span(batch.inputs).first(2), std::span(outputs)));
    for (std::size_t m = 0; m < outputs.size(); ++m) {
      at::NoGradGuard const none;
      Tensor x = batch.inputs[m];
      for (auto& layer : plain.layers) {
        layer->eval();
        x = layer->forward(x);
      }
      REQUIRE(outputs[m].tensor().equal(x));
    }
    for (auto& layer : plain.layers) layer->train();
    check_same_bits(train, plain, batch, what == "dropout");
  }
}

namespace {

/// y = tanh(x W), its derivative by hand.
struct ByHand {
  using Input = Value;
  using Output = Value;
  struct Saved {
    Tensor y;
  };
  std::int64_t size = 0;
  sg::Parameter<float> weight;

  explicit ByHand(Tensor const& w)
      : size(w.size(0)),
        weight("0.weight", {w.const_data_ptr<float>(), w.const_data_ptr<float>() + w.numel()}) {}
  auto parameters() { return std::tie(weight); }
  [[nodiscard]] Tensor view(float const* values) const {
    return at::from_blob(const_cast<float*>(values), {size, size}, at::kFloat);
  }
  void forward(sg::Context& context, Value const& x, Value& y, Saved& saved) const {
    at::init_num_threads();
    saved.y = x.tensor().mm(view(context[weight].data())).tanh();
    y = saved.y;
  }
  void backward(sg::Context& context, Value const& x, Value const& dy, Value& dx,
                Saved& saved) const {
    at::init_num_threads();
    Tensor const g = at::tanh_backward(dy, saved.y);
    dx = g.mm(view(context[weight].data()).t());
    view(context.gradient(weight).data()).add_(x.tensor().t().mm(g));
  }
};

}  // namespace

TEST_CASE("torch/Stage: each microbatch sees the version of its forward in backward, too",
          "[torch]") {
  at::manual_seed(3);
  Layers layers;
  std::vector<ByHand> by_hand;
  for (int l = 0; l < 4; ++l) {
    // Of a product with a parameter libtorch keeps the parameter, whose memory changes.
    layers.emplace_back(Call([](Tensor x, Tensor const& w) { return x.mm(w).tanh(); }, 24));
    layers.back()->parameters()[0].data().copy_(at::randn({24, 24}) * 0.2);
    by_hand.emplace_back(layers.back()->parameters()[0]);
  }
  auto const batch = batch_of("dropout", 12);
  for (int const stages : {2, 4}) {
    auto const stream = [&](auto model, int threads) {
      auto train = sg::Pipeline{sg::Sequential{std::move(model)}}.with(
          sg::partition::Even{.stages = stages}, sg::schedule::PipeDream{},
          sg::staleness::WeightStashing{}, loss(), adam, sg::host::Threads{threads});
      sg::run(train.stream(batch));
      sg::run(train.stream(batch));
      return train;
    };
    auto expected = stream(by_hand, 1);
    for (int const threads : {1, stages}) {
      auto train = stream(stages_of(layers), threads);
      auto const states = train.parameters();
      auto const by_hand_states = expected.parameters();
      REQUIRE(states.size() == 4);
      for (std::size_t l = 0; l < states.size(); ++l) {
        auto const values = states[l].values<float>();
        auto const others = by_hand_states[l].template values<float>();
        float most = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
          most = std::max(most, std::abs(values[i] - others[i]));
        REQUIRE(most == 0);
      }
    }
  }
}

TEST_CASE("torch/Stage: replicas share the rows of a microbatch", "[torch]") {
  auto const batch = batch_of("dropout", 4);
  auto const layers = [] {
    at::manual_seed(3);
    Layers all;
    for (int l = 0; l < 4; ++l) all.emplace_back(nn::Linear(24, 24), nn::Tanh());
    return all;
  };
  for (sg::Replicas const& replicas :
       {sg::Replicas{2, 1}, sg::Replicas{1, 2}, sg::Replicas{2, 2}}) {
    Plain plain(layers());
    sg::Options const options{.replicas = replicas};
    auto one = pipeline(stages_of(layers()), 2, sg::host::Threads{1}, options);
    auto many = pipeline(stages_of(layers()), 2, sg::host::Threads{4}, options);
    for (int step = 0; step < 3; ++step) {
      double const expected = plain.step(batch, false);
      double const loss = sg::run(many.step(batch)).loss;
      REQUIRE(std::abs(loss - expected) < 1e-5 * expected);
      REQUIRE(loss == sg::run(one.step(batch)).loss);
    }
  }
  // Their rows are dropped independently of each other.
  Stages dropout;
  dropout.emplace_back(sg::torch::Dropout(0.5));
  std::vector<Tensor> outputs;
  auto train = sg::Pipeline{sg::Sequential{std::move(dropout)}}.with(
      sg::torch::Loss{[&](Tensor const& y, Tensor const&) {
        outputs.push_back(y.detach());
        return y.mean();
      }},
      sg::Options{.replicas = {2}}, sg::host::Threads{1});
  Data two;
  two.inputs.emplace_back(at::ones({2, 24}));
  two.targets.emplace_back(at::ones({2, 24}));
  sg::run(train.step(two));
  REQUIRE(outputs.size() == 2);
  REQUIRE_FALSE(outputs[0].equal(outputs[1]));
}

TEST_CASE("torch/Stage: checkpoints restore a run to the bit", "[torch]") {
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  auto const batch = batch_of("transformer", 4);
  auto const fresh = [&] {
    return pipeline(stages_of(make("transformer")), 4, sg::host::Threads{2},
                    sg::schedule::ZeroBubbleH1{});
  };
  auto train = fresh();
  sg::run(train.step(batch));
  checkpoints.write({train.steps(), run_seed, "a model", "its settings"}, train);
  double const loss = sg::run(train.step(batch)).loss;
  auto resumed = fresh();
  REQUIRE(checkpoints.restore("a model", resumed).warnings == std::vector<std::string>());
  REQUIRE(sg::run(resumed.step(batch)).loss == loss);
  auto const expected = train.parameters();
  auto const states = resumed.parameters();
  for (std::size_t i = 0; i < states.size(); ++i) {
    auto const a = states[i].values<float>();
    auto const b = expected[i].values<float>();
    REQUIRE(std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
  }
}

namespace {

/// Has no clone().
struct TokensImpl : nn::Module {
  nn::Embedding table;
  explicit TokensImpl(bool sparse)
      : table(register_module("table", nn::Embedding(nn::EmbeddingOptions(5, 8).sparse(sparse)))) {}
  Tensor forward(Tensor const& tokens) { return table(tokens); }
};
struct PairImpl : nn::Cloneable<PairImpl> {
  void reset() override {}
  std::tuple<Tensor, Tensor> forward(Tensor x) { return {x, x}; }
};
TORCH_MODULE(Pair);

static_assert(sg::Stage<sg::torch::Stage>);
static_assert(!sg::torch::detail::HasClone<TokensImpl> &&
              sg::torch::detail::HasClone<nn::LinearImpl> &&
              sg::torch::detail::HasClone<nn::SequentialImpl>);
static_assert(sg::torch::detail::GivesTensor<nn::LinearImpl> &&
              sg::torch::detail::GivesTensor<nn::SequentialImpl> &&
              !sg::torch::detail::GivesTensor<PairImpl> &&
              !sg::torch::detail::GivesTensor<nn::Module>);

}  // namespace

TEST_CASE("torch/Stage: whatever holds a module is one, and its values come back", "[torch]") {
  for (bool const sparse : {false, true}) {
    at::manual_seed(3);
    auto const tokens = std::make_shared<TokensImpl>(sparse);
    nn::Linear frozen(8, 8);
    frozen->bias.set_requires_grad(false);
    nn::Linear linear(8, 8);
    nn::Dropout never(0.5);
    never->eval();
    nn::Sequential behind(linear, never);

    at::manual_seed(3);  // the same values again
    Stages stages;
    stages.emplace_back([sparse] { return std::make_shared<TokensImpl>(sparse); });
    stages.emplace_back(nn::AnyModule(frozen));
    stages.emplace_back(std::make_shared<nn::TanhImpl>());
    stages.emplace_back(behind);

    Data batch;
    for (int m = 0; m < 4; ++m) {
      batch.inputs.emplace_back(at::randint(5, {4, 3}, at::kLong));
      batch.targets.emplace_back(at::randn({4, 3, 8}));
    }
    Plain plain({nn::Sequential(nn::AnyModule(tokens)), nn::Sequential(frozen),
                 nn::Sequential(nn::Tanh()), behind});
    if (sparse)  // the loop's optimizer reads dense ones
      for (auto& p : plain.parameters)
        if (p.requires_grad()) p.mutable_grad() = at::zeros_like(p);
    auto train = pipeline(stages, 4, sg::schedule::ZeroBubbleH1{}, sg::host::Threads{2});
    auto const before = train.parameters()[2].values<float>()[0];
    check_same_bits(train, plain, batch, false);
    REQUIRE(train.parameters()[2].name == "1.bias");
    REQUIRE(train.parameters()[2].values<float>()[0] == before);
    double const evaluated = sg::run(train.evaluate(batch)).loss;
    REQUIRE(sg::run(train.step(batch)).loss == evaluated);  // nothing is dropped in training either

    nn::Linear other(8, 8);
    sg::torch::copy_parameters(train.parameters(), 1, *other);
    REQUIRE(same(train.parameters()[1].values<float>(), other->weight));
    REQUIRE(same(train.parameters()[2].values<float>(), other->bias));
    REQUIRE(refusal([&] { sg::torch::copy_parameters(train.parameters(), 2, *other); }) ==
            "the trainer has no parameter '2.weight', which torch::nn::LinearImpl has; give the "
            "module of layer 2");
  }
}

TEST_CASE("torch/Stage: the second half of backward keeps nothing of the first", "[torch]") {
  c10::weak_intrusive_ptr<c10::StorageImpl> kept(c10::intrusive_ptr<c10::StorageImpl>{});
  sg::torch::Stage stage{Call(
      [&](Tensor x, Tensor const& w) {
        Tensor const hidden = x.exp();  // kept for the gradient of x alone
        kept = hidden.storage().getWeakStorageImpl();
        return (hidden + 1).mm(w);
      },
      8)};
  auto& weight = stage.parameters()[0];
  auto values = weight.adopt(0, 1);
  std::vector<float> sum(values.size());
  sg::ParameterView const view{.value = values.data(), .gradient = sum.data(), .size = sum.size()};
  sg::Context context;
  Value const x(at::ones({2, 8})), dy(at::ones({2, 8}));
  Value y, dx;
  sg::torch::Stage::Saved saved;
  context.begin_step(0, 0, true);
  context.begin_action(&view, 1, 0);
  stage.forward(context, x, y, saved);
  REQUIRE_FALSE(kept.expired());
  stage.backward_input(context, x, dy, dx, saved);
  REQUIRE(dx.tensor().allclose(at::full({2, 8}, std::exp(1.0) * 8 * 0.25)));
  REQUIRE(kept.expired());
  REQUIRE(sum == std::vector<float>(64));
  stage.backward_weight(context, x, dy, saved);
  REQUIRE(at::from_blob(sum.data(), {8, 8}).allclose(at::full({8, 8}, 2 * (std::exp(1.0) + 1))));
  REQUIRE(saved.nodes.empty());
}

TEST_CASE("torch/Stage: what a stage hands on is its own", "[torch]") {
  // Of the input, of the input by another view, and of a parameter.
  for (CallImpl::Call const &call :
       {CallImpl::Call([](Tensor x, Tensor const&) { return x; }),
        CallImpl::Call([](Tensor x, Tensor const&) { return x.view({4, 4}); }),
        CallImpl::Call([](Tensor, Tensor const& w) { return w; }),
        CallImpl::Call([](Tensor, Tensor const& w) { return w.view({16, 4}); })}) {
    sg::torch::Stage stage{Call(call, 8)};
    auto& weight = stage.parameters()[0];
    auto values = weight.adopt(0, 1);
    std::vector<float> sum(values.size());
    sg::ParameterView const view{
        .value = values.data(), .gradient = sum.data(), .size = sum.size()};
    sg::Context context;
    context.begin_step(0, 0, true);
    context.begin_action(&view, 1, 0);
    Value const x(at::ones({2, 8}));
    Value y, dx;
    sg::torch::Stage::Saved saved;
    stage.forward(context, x, y, saved);
    REQUIRE_FALSE(y.tensor().is_alias_of(x.tensor()));
    auto const* const first = reinterpret_cast<std::byte const*>(values.data());
    REQUIRE((y.data() < first || y.data() >= first + values.size() * sizeof(float)));
    Value const dy(at::ones_like(y.tensor()));
    stage.backward(context, x, dy, dx, saved);
    Tensor const w = at::full({8, 8}, 0.25).requires_grad_();
    Tensor const leaf = x.tensor().detach().requires_grad_();
    call(leaf, w).backward(dy.tensor());
    auto const gradient = [](Tensor const& of) {
      return of.grad().defined() ? of.grad() : at::zeros_like(of);
    };
    REQUIRE(dx.tensor().equal(gradient(leaf)));
    REQUIRE(at::from_blob(sum.data(), {8, 8}).equal(gradient(w)));
    REQUIRE_FALSE(dx.tensor().is_alias_of(dy.tensor()));
    context.begin_step(0, 0, false);  // in evaluation too
    stage.forward(context, x, y, saved);
    REQUIRE((y.data() < first || y.data() >= first + values.size() * sizeof(float)));
  }
}

TEST_CASE("torch/Stage: the engine's threads compute on as many threads as libtorch was told",
          "[torch]") {
  void* const count = ::dlsym(RTLD_DEFAULT, "omp_get_max_threads");
  REQUIRE(count != nullptr);
  auto const threads = reinterpret_cast<int (*)()>(count);
  std::atomic<int> most = 0;
  Stages stages;
  for (int l = 0; l < 3; ++l)
    stages.emplace_back(Call([&](Tensor x, Tensor const&) {
      int const here = threads();
      for (int known = most; known < here && !most.compare_exchange_weak(known, here);) continue;
      return x;
    }));
  auto train = pipeline(std::move(stages), 3, sg::host::Threads{3});
  sg::run(train.step(batch_of("odd", 3)));
  REQUIRE(most == 1);
}

TEST_CASE("torch/Stage: the global generator is as it was", "[torch]") {
  auto const batch = batch_of("transformer", 2);
  auto train = pipeline(stages_of(make("transformer")), 2, sg::host::Threads{2});
  at::manual_seed(9);
  Tensor const expected = at::randn({3});
  at::manual_seed(9);
  sg::run(train.step(batch));
  REQUIRE(at::randn({3}).equal(expected));
}

TEST_CASE("torch/Stage: making stages leaves the global generator as it was", "[torch]") {
  auto const layers = make("transformer");
  at::manual_seed(9);
  Tensor const expected = at::randn({3});
  at::manual_seed(9);
  auto const train = pipeline(stages_of(layers), 2, sg::host::Threads{2});
  REQUIRE(at::randn({3}).equal(expected));
}

TEST_CASE("torch/Stage: evaluation draws the numbers of its microbatch, in inference mode too",
          "[torch]") {
  Stages stages;
  for (int l = 0; l < 3; ++l)
    stages.emplace_back(nn::Sequential(
        nn::Linear(8, 8), Call([](Tensor x, Tensor const&) { return at::dropout(x, 0.5, true); })));
  auto one = pipeline(stages, 1, sg::host::Threads{1});
  auto three = pipeline(stages, 3, sg::host::Threads{3});
  c10::InferenceMode const on;
  auto const batch = batch_of("odd", 3);
  double const loss = sg::run(one.evaluate(batch)).loss;
  REQUIRE(sg::run(one.evaluate(batch)).loss == loss);
  REQUIRE(sg::run(three.evaluate(batch)).loss == loss);
  REQUIRE(sg::run(one.step(batch)).loss == sg::run(three.step(batch)).loss);
}

TEST_CASE("torch/Stage: parameters have the names of the module that was given", "[torch]") {
  nn::Sequential const named({{"first", nn::Linear(8, 8)}, {"last", nn::Linear(8, 8)}});
  auto train = pipeline({sg::torch::Stage{named}}, 1);
  sg::run(train.step(batch_of("odd", 1)));
  auto const states = train.parameters();
  REQUIRE(states[0].name == "0.first.weight");
  sg::torch::copy_parameters(states, 0, *named);
  for (std::size_t i = 0; i < states.size(); ++i)
    REQUIRE(same(states[i].values<float>(), named->parameters()[i]));
}

TEST_CASE("torch/Stage: what a module gets wrong is said with its name", "[torch]") {
  auto const call = [](CallImpl::Call of) { return Call(std::move(of)); };
  std::string const mine = "torch_stage_test::(anonymous namespace)::CallImpl in layer 1";
  REQUIRE(said_by(call([](Tensor, Tensor const&) { return Tensor(); })) ==
          "forward of " + mine + " returned an undefined tensor; return the output");
  REQUIRE(said_by(nn::ReLU(nn::ReLUOptions().inplace(true))) ==
          "torch::nn::ReLUImpl in layer 1: a leaf Variable that requires grad is being used in an "
          "in-place operation.; use the module without inplace");
  std::string said = said_by(call([](Tensor x, Tensor const&) {
    Tensor y = x.tanh();
    y.add_(1);
    return y;
  }));
  REQUIRE_THAT(said,
               Catch::Contains(mine + ": one of the variables needed for gradient computation "
                                      "has been modified by an inplace operation"));
  REQUIRE_THAT(said, Catch::Contains("; use the module without inplace"));
  // What only the rest of the program would notice: in the first layer, and in evaluation.
  auto first = pipeline({sg::torch::Stage{nn::ReLU(nn::ReLUOptions().inplace(true))}}, 1);
  std::string const changes =
      "forward of torch::nn::ReLUImpl in layer 0 changes its input in place, which others still "
      "read; use the module without inplace";
  REQUIRE(refusal([&] { sg::run(first.step(batch_of("odd", 1))); }) == changes);
  REQUIRE(refusal([&] { sg::run(first.evaluate(batch_of("odd", 1))); }) == changes);
  said = said_by(nn::Linear(5, 8));
  REQUIRE_THAT(said,
               Catch::Contains("torch::nn::LinearImpl in layer 1: mat1 and mat2 shapes cannot "
                               "be multiplied (4x8 and 5x8); give it an input that fits"));
  REQUIRE_THAT(
      said_by(nn::AnyModule(Pair())),
      Catch::Contains("PairImpl in layer 1: Attempted to cast AnyValue to at::Tensor, but its "
                      "actual type is std::tuple<at::Tensor, at::Tensor>; let its forward "
                      "take one tensor and return one"));

  auto const made_of = [](auto given) { return refusal([&] { sg::torch::Stage{given}; }); };
  REQUIRE(made_of(nn::Linear(nullptr)) ==
          "a torch::Stage was made from an empty holder; give it a module, as with Linear(2, 3)");
  REQUIRE(made_of(nn::AnyModule()) == made_of(nn::Linear(nullptr)));
  nn::Linear precise(2, 2);
  precise->to(at::kDouble);
  REQUIRE(made_of(precise) ==
          "the parameter 'weight' of torch::nn::LinearImpl has elements of type Double on cpu, but "
          "a stage trains floats on the host; convert the module with to(torch::kFloat) and "
          "to(torch::kCPU)");
  sg::torch::Stage const once{[same = std::make_shared<TokensImpl>(false)] { return same; }};
  REQUIRE_THAT(refusal([&] { sg::torch::Stage{once}; }),
               Catch::Contains("TokensImpl twice; let it make a module in each call"));
  sg::torch::Stage const grows{
      [size = std::make_shared<int>(1)] { return nn::Linear(2, (*size)++); }};
  REQUIRE_THAT(refusal([&] { sg::torch::Stage{grows}; }),
               Catch::Contains("a copy of torch::nn::LinearImpl has other parameters or buffers"));
  sg::torch::Stage const shares{
      [inner = nn::Linear(2, 2)] { return nn::Sequential(inner, nn::Tanh()); }};
  REQUIRE_THAT(refusal([&] { sg::torch::Stage{shares}; }),
               Catch::Contains("a copy of torch::nn::SequentialImpl has the same parameters or "
                               "buffers in memory; "));
  for (std::string const& no_clone :
       {made_of(nn::AnyModule(NoClone())), made_of(nn::Sequential(NoClone()))})
    REQUIRE_THAT(no_clone, Catch::Contains(" cannot be copied: ") &&
                               Catch::EndsWith("that makes it: Stage{[] { return Mine(8); }}"));
  REQUIRE(refusal([] { sg::torch::Dropout(1.5); }) ==
          "a dropout rate of 1.5 is no probability; give one from 0 to 1");
}

TEST_CASE("torch/Stage: a parameter that two modules share is refused", "[torch]") {
  nn::Linear linear(8, 8);
  REQUIRE(
      refusal([&] { sg::torch::Stage{nn::Sequential(linear, linear)}; }) ==
      "the parameter '1.weight' of torch::nn::SequentialImpl is the parameter '0.weight' of "
      "torch::nn::SequentialImpl; a stage trains its parameters for itself, so give each module "
      "its own");
  sg::torch::Stage first{linear};
  nn::Sequential const around(nn::Tanh(), linear);
  auto const again = [&] { return refusal([&] { sg::torch::Stage{around}; }); };
  REQUIRE(again() ==
          "the parameter '1.weight' of torch::nn::SequentialImpl is the parameter 'weight' of "
          "torch::nn::LinearImpl as well; a stage trains its parameters for itself, so give each "
          "module its own");
  // Copies are layers of their own; the module itself cannot be given twice.
  Stages const layers(3, first);
  REQUIRE(refusal([&] { sg::torch::Stage{linear}; }) ==
          "a stage was made from this torch::nn::LinearImpl before, and the two would train copies "
          "that differ; give each layer a module of its own, and for another pipeline copy the "
          "stage");
  REQUIRE_FALSE(again().empty());
  {
    auto const trainer = pipeline({std::move(first)}, 1);
    REQUIRE_FALSE(again().empty());  // another copy is there, of which a pipeline may be made
  }
  for (auto layer : layers) static_cast<void>(layer.parameters());
  REQUIRE_FALSE(again().empty());
}

TEST_CASE("torch/Loss: what its function gets wrong is said", "[torch]") {
  auto const said = [](sg::torch::Loss loss, std::int64_t size = 8) {
    Stages stages;
    stages.emplace_back(nn::Linear(8, size));
    auto train = sg::Pipeline{sg::Sequential{std::move(stages)}}.with(std::move(loss));
    return refusal([&] { sg::run(train.step(batch_of("odd", 1))); });
  };
  using Loss = sg::torch::Loss;
  REQUIRE(said(Loss{[](Tensor const& y, Tensor const&) { return y; }}) ==
          "the function of a torch::Loss returned a tensor of extents [4, 8]; return the mean over "
          "the microbatch, a tensor of one element, as with mean()");
  REQUIRE_THAT(said(Loss{[](Tensor const&, Tensor const&) { return Tensor(); }}),
               Catch::Contains("returned an undefined tensor; return the mean"));
  REQUIRE_THAT(said(Loss{mean_square}, 7),
               Catch::Contains("the function of a torch::Loss: The size of tensor a (7) must match "
                               "the size of tensor b (8)"));
  REQUIRE_THAT(refusal([] { Loss{nullptr}; }), Catch::Contains("made from an empty function"));
  REQUIRE(said(Loss{[](Tensor const&, Tensor const& t) { return t.mean(); }}).empty());
}

TEST_CASE("torch/Loss: terms weigh microbatches of unequal size", "[torch]") {
  Data batch;
  for (int const rows : {1, 3, 4}) {
    batch.inputs.emplace_back(at::ones({rows, 1}));
    batch.targets.emplace_back(at::full({rows, 1}, rows));
  }
  auto const loss_of = [&](sg::torch::Loss loss) {
    at::manual_seed(3);
    Stages stages;
    stages.emplace_back(nn::Identity());
    auto train = sg::Pipeline{sg::Sequential{std::move(stages)}}.with(std::move(loss));
    return sg::run(train.evaluate(batch)).loss;
  };
  REQUIRE(loss_of(loss()) == (1 * 0.0 + 3 * 4.0 + 4 * 9.0) / 8);
  REQUIRE(loss_of(sg::torch::Loss{mean_square, [](Tensor const&) { return 1; }}) ==
          (0.0 + 4.0 + 9.0) / 3);
}

TEST_CASE("torch/Value: rows, messages and digests of any dense tensor", "[torch]") {
  auto const digest = [](Value const& value) {
    sg::detail::ContentDigest all;
    sg::detail::add_content(all, value);
    return all.value();
  };
  at::manual_seed(3);
  Tensor const wide = at::randn({4, 3, 2, 2});
  for (Tensor const& tensor :
       {Tensor(), at::scalar_tensor(3), wide, wide.contiguous(at::MemoryFormat::ChannelsLast),
        wide.transpose(1, 2), wide.slice(1, 0, 2), wide.narrow(0, 0, 1).expand({4, 3, 2, 2}),
        at::arange(6).to(at::kShort), at::zeros({0, 3})}) {
    Value const value(tensor);
    if (tensor.defined()) REQUIRE(value.tensor().equal(tensor));
    REQUIRE(value.size() == (tensor.defined() ? tensor.nbytes() : 0));
    sg::ByteWriter out;
    sg::Portable<Value>::write(out, value);
    for (Value read : {Value(), Value(at::ones({2})), value}) {
      sg::ByteReader in(out.data(), out.size());
      sg::Portable<Value>::read(in, read);
      REQUIRE(in.left() == 0);
      REQUIRE(read.tensor().defined() == tensor.defined());
      if (!tensor.defined()) continue;
      REQUIRE(read.tensor().equal(tensor));
      REQUIRE(read.tensor().strides() == value.tensor().strides());
      REQUIRE(read.tensor().scalar_type() == tensor.scalar_type());
      REQUIRE_FALSE(read.tensor().is_alias_of(value.tensor()));
      REQUIRE(digest(read) == digest(value));
    }
    if (value.rows() < 2) continue;
    Value part, whole;
    whole.resize_rows(value, value.rows());
    for (std::size_t row = 0; row < value.rows(); ++row) {
      part.resize_rows(value, 1);
      part.copy_rows(0, value, row, 1);
      whole.resize_rows(part, value.rows());
      whole.copy_rows(row, part, 0, 1);
    }
    REQUIRE(whole.tensor().equal(tensor));
    if (tensor[0].equal(tensor[1])) continue;
    part.copy_rows(0, value, 1, 1);
    REQUIRE(digest(part) != digest(Value(value.tensor().narrow(0, 0, 1))));
  }
  REQUIRE(Value(wide.narrow(0, 0, 1)).bytes() == wide.nbytes());
  REQUIRE_FALSE(Value(at::ones({2}).requires_grad_()).tensor().requires_grad());
  REQUIRE(refusal([&] { Value{wide.to_sparse()}; }) ==
          "a value is a tensor on cpu of layout Sparse, but stages work on strided tensors on the "
          "host; convert it with to(at::kCPU).to_dense()");
}

}  // namespace torch_stage_test

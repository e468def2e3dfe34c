// SPDX-License-Identifier: Apache-2.0
// An observer is told of the gradients that updates use, bit by bit, and of nothing else.
#include <stagger/train/observe.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/error.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/small_model.hpp"

namespace observe_test {

using namespace small_model;

namespace {

/// Keeps the gradient that it used.
struct Keeping {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 1;
  static constexpr bool element_wise = true;
  double rate = 0.1;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t) const noexcept {
    for (std::size_t i = 0; i < v.size; ++i) {
      v.state[0][i] = v.gradient[i];
      v.next[i] = v.value[i] - static_cast<T>(rate * scale) * v.gradient[i];
    }
  }
};

/// What it was told of the current step.
class Told final : public sg::StepObserver {
 public:
  void begin_step(sg::ObservedStep const& step) override {
    gradients.clear();
    ++begun;
    last = step;
    if (fails_to_begin) throw std::runtime_error("not today");
  }
  void gradient(sg::ParameterGradient const& of) override {
    std::lock_guard const lock(mutex_);
    if (fails && (fails_at < 0 || fails_at == of.layer)) throw std::runtime_error("seen enough");
    auto& known = gradients[sg::text(of.layer, ".", of.name)];
    auto const add = [&](auto values) {
      for (std::size_t i = 0; i < values.size(); ++i)  // floats are doubles exactly
        twice = !known.emplace(of.first + i, values[i]).second || twice;
    };
    if (of.type == sg::ElementType::f32)
      add(of.values<float>());
    else
      add(of.values<double>());
  }
  void end_step(sg::ObservedStep const& step, std::exception_ptr const& why) noexcept override {
    same = same && step.number == last.number && step.training == last.training;
    ++ended;
    failed += why ? 1 : 0;
  }

  std::map<std::string, std::map<std::size_t, double>> gradients;
  sg::ObservedStep last;
  int begun = 0, ended = 0, failed = 0;
  bool twice = false, same = true, fails = false, fails_to_begin = false;
  int fails_at = -1;  // a layer; -1: any

 private:
  std::mutex mutex_;
};

/// Whether the observer was told exactly the gradients that the optimizer kept.
template <class Trainer> bool told_all(Trainer& train, Told const& told) {
  std::size_t parameters = 0;
  for (auto const& state : train.parameters()) {
    auto const known = told.gradients.find(state.name);
    if (known == told.gradients.end()) return false;
    ++parameters;
    std::size_t const bytes = sg::element_bytes(state.type);
    if (known->second.size() != state.state[0].size() / bytes) return false;
    for (auto const& [at, value] : known->second) {
      std::byte const* const kept = state.state[0].data() + at * bytes;
      auto const narrow = static_cast<float>(value);
      void const* const told_value =
          bytes == sizeof narrow ? static_cast<void const*>(&narrow) : &value;
      if (std::memcmp(kept, told_value, bytes) != 0) return false;
    }
  }
  return parameters == told.gradients.size() && !told.twice;
}

template <class... P> auto observed(std::shared_ptr<Told> const& told, P... policy) {
  return sg::Pipeline{model()}.with(sg::Observe{told}, Keeping{}, Loss{}, std::move(policy)...);
}

}  // namespace

TEST_CASE("train/Observe: it is told the gradients that an update uses, each once", "[train]") {
  auto const check = [](auto& train, Told const& told) {
    for (int s = 0; s < 3; ++s) {
      sg::run(train.step(batch(s, 4, false)));
      CHECK(told_all(train, told));
      CHECK(told.last.number == s);
      CHECK(told.last.microbatches == 4);
    }
    CHECK(sg::run(train.evaluate(batch(3, 4, false))).loss > 0);
    CHECK(!told.last.training);
    CHECK(told.gradients.empty());
    CHECK(told.begun == 4);
    CHECK(told.ended == 4);
    CHECK(told.failed == 0);
    CHECK(told.same);
  };
  for (int const replicas : {1, 2, 3})
    for (bool const gpipe : {false, true}) {
      CAPTURE(replicas, gpipe);
      auto const told = std::make_shared<Told>();
      auto train =
          observed(told, gpipe ? made(sg::schedule::GPipe{}) : made(sg::schedule::OneFOneB{}),
                   sg::partition::Even{2}, sg::host::Threads{2},
                   sg::Options{.clip_norm = 0.5, .replicas = {replicas, replicas}});
      check(train, *told);
    }
  auto const told = std::make_shared<Told>();
  auto train = observed(told, sg::partition::Even{3}, sg::sim::VirtualClock{});
  check(train, *told);
}

TEST_CASE("train/Observe: without a flush, and before a push", "[train]") {
  {
    auto const told = std::make_shared<Told>();
    auto train = observed(told, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{},
                          sg::partition::Even{2}, sg::host::Threads{2});
    auto const one = batch(0, 1, false);  // of several updates the optimizer keeps the last
    sg::run(train.stream(one));
    CHECK(told_all(train, *told));
  }
  sg::collective::ParameterServer server{{.workers = 1}};
  auto const told = std::make_shared<Told>();
  auto train =
      observed(told, server.worker(0), sg::staleness::LocalSgd{.period = 2, .average_state = false},
               sg::partition::Even{2}, sg::host::Threads{2});
  for (int s = 0; s < 4; ++s) {
    sg::run(train.step(batch(s, 2, false)));
    CHECK(told_all(train, *told));
  }
  for (int const layer : {0, 1, 5, 6}) {  // a local step: neither rank updates
    sg::run(train.step(batch(4, 2, false)));
    sg::run(train.step(batch(5, 2, false)));
    auto const before = bits(train);  // of the last mean
    told->fails = true;
    told->fails_at = layer;
    CHECK_THROWS_WITH(sg::run(train.step(batch(6, 2, false))), "seen enough");
    told->fails = false;
    CHECK(bits(train) == before);
  }
}

TEST_CASE("train/Observe: its exception fails the step", "[train]") {
  auto const told = std::make_shared<Told>();
  auto const second = std::make_shared<Told>();
  auto train = sg::Pipeline{model()}.with(sg::Observe{told}, sg::Observe{second}, Keeping{}, Loss{},
                                          sg::partition::Even{2}, sg::host::Threads{2});
  sg::run(train.step(batch(0, 2, false)));
  auto const before = bits(train);
  second->fails = true;
  CHECK_THROWS_WITH(sg::run(train.step(batch(1, 2, false))), "seen enough");
  CHECK(bits(train) == before);
  CHECK(train.steps() == 1);
  CHECK(told->failed == 1);
  for (int const layer : {0, 1, 5, 6}) {  // of either rank, when the other has nothing against it
    second->fails_at = layer;
    CHECK_THROWS_WITH(sg::run(train.step(batch(1, 2, false))), "seen enough");
    CHECK(bits(train) == before);
  }
  CHECK(train.steps() == 1);
  second->fails = false;
  second->fails_to_begin = true;
  CHECK_THROWS_WITH(sg::run(train.step(batch(1, 2, false))), "not today");
  CHECK(told->failed == 6);  // it had begun
  CHECK(second->failed == 5);
  second->fails_to_begin = false;
  sg::run(train.step(batch(1, 2, false)));
  CHECK(told_all(train, *told));
  CHECK(told_all(train, *second));
}

TEST_CASE("train/Observe: bad input", "[train]") {
  CHECK_THROWS_WITH(sg::Observe{nullptr},
                    "nothing can observe a pipeline by a null pointer; give Observe one that "
                    "std::make_shared has made");
  float const one = 1;
  sg::ParameterGradient const of{3, "bias", sg::ElementType::f32, 0, 1, &one};
  CHECK(of.values<float>()[0] == 1);
  CHECK_THROWS_WITH(of.values<double>(),
                    "the gradients of 'bias' of layer 3 are floats; ask for values<float>()");
}

}  // namespace observe_test

// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/detail/late_answers.hpp>

#include "catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace late_answers_test {

namespace sg = stagger;
using sg::collective::detail::LateAnswers;
using sg::detail::LayerParameters;

namespace {

struct Told final : sg::detail::ParameterListener {
  std::vector<std::uint32_t> steps;
  std::vector<double> score, loss;  // of the only layer
  void arrived(std::size_t, std::uint32_t) noexcept override {}
  void late_layers(std::uint32_t step, sg::detail::LateSet const&) noexcept override {
    steps.push_back(step);
  }
  void late_scores(std::uint32_t step, std::span<double const> scores,
                   double of) noexcept override {
    steps.push_back(step);
    score.push_back(scores[0]);
    loss.push_back(of);
  }
  void lost(std::exception_ptr) noexcept override {}
};

/// Two workers and one layer of one weight, all of which is late.
struct Server {
  using Model =
      sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                           sg::staleness::overlapped::FirstFit,
                                           sg::staleness::overlapped::AllLate>;
  Model model{};
  sg::FixedArray<LayerParameters> layers{1};
  std::vector<Told> told{4};
  LateAnswers answers;
  std::atomic<bool> active{true};

  explicit Server(bool in_parts) : answers(made(in_parts)) {}
  LateAnswers made(bool in_parts) {
    sg::List<sg::detail::ParameterDeclaration> declared;
    declared.emplace_back();
    declared[0].type = sg::ElementType::f64;
    declared[0].size = 1;
    layers[0].adopt(std::move(declared), 0, 0);
    sg::detail::WorkerRules rules;
    rules.late = sg::detail::late_calls_of<Model>;
    rules.late_policy = &model;
    rules.in_parts = in_parts;
    return LateAnswers(rules, {layers.data(), 1}, 2, told.size());
  }
  void add(double gradient) {
    auto const& view = layers[0].views()[0];
    *static_cast<double*>(view.gradient) = gradient;
    *static_cast<double*>(view.value) = 1;
    answers.add(sg::detail::ScoredLayer(layers[0], 0, 0));
  }
  void lose(int worker, double loss) { answers.add_loss(worker, loss, active); }
  void ask(int client, std::uint32_t step) {
    answers.ask(client, step, told[static_cast<std::size_t>(client)], active);
  }
  void end_step(double gradient) {
    lose(0, gradient);
    lose(1, gradient);
    add(gradient);
  }
};

using Steps = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("collective/LateAnswers: a worker that is a step ahead waits for the choice of its step",
          "[collective]") {
  for (bool const in_parts : {false, true}) {
    Server server(in_parts);
    server.end_step(1);
    server.ask(0, 1);
    server.ask(0, 2);  // nothing was urgent, so it did not wait for the other
    server.ask(1, 1);
    CHECK(server.told[0].steps == Steps{1});
    CHECK(server.told[1].steps == Steps{1});
    server.ask(1, 2);
    server.end_step(2);
    CHECK(server.told[0].steps == Steps{1, 2});
    CHECK(server.told[1].steps == Steps{1, 2});
  }
}

TEST_CASE(
    "collective/LateAnswers: a process that asks later than others of its worker gets the same",
    "[collective]") {
  Server server(true);
  server.end_step(3);
  server.ask(0, 1);
  server.lose(0, 5);
  server.add(5);
  server.ask(1, 1);  // some of the next scores are there
  server.lose(1, 5);
  server.ask(2, 1);  // all of them
  for (std::size_t n = 0; n < 3; ++n) {
    CHECK(server.told[n].score == std::vector<double>{3});
    CHECK(server.told[n].loss == std::vector<double>{3});
  }
  server.ask(3, 2);
  CHECK(server.told[3].score == std::vector<double>{5});
  server.end_step(7);
  REQUIRE_THROWS_WITH(server.ask(2, 1),
                      Catch::Matchers::Contains("asks which layers are late in step 1"));
}

TEST_CASE("collective/LateAnswers: a worker that has come back counts its steps from then",
          "[collective]") {
  Server server(false);
  server.end_step(1);
  server.answers.lose(1);
  CHECK_FALSE(server.answers.has(1));
  server.lose(0, 1);
  server.ask(1, 0);
  CHECK(server.told[1].steps.empty());  // it waits to come back
  server.add(1);
  REQUIRE(server.answers.between_steps());
  server.ask(3, 0);  // its second process
  server.answers.come_back(1);
  CHECK(server.answers.has(1));
  CHECK(server.told[1].steps == Steps{0});
  CHECK(server.told[3].steps == Steps{0});
  server.ask(0, 3);
  server.ask(1, 1);
  server.ask(3, 1);
  CHECK(server.told[3].steps == Steps{0});
  server.end_step(1);
  CHECK(server.told[0].steps == Steps{3});
  CHECK(server.told[1].steps == Steps{0, 1});
  CHECK(server.told[3].steps == Steps{0, 1});
  // All go: the first to come back begins anew.
  server.answers.lose(0);
  server.answers.start_over_if_deserted();
  server.answers.lose(1);
  server.answers.start_over_if_deserted();
  server.answers.come_back(0);
  server.ask(0, 0);
  CHECK(server.told[0].steps == Steps{3, 0});
  server.ask(0, 1);
  server.lose(0, 1);
  server.add(1);
  CHECK(server.told[0].steps == Steps{3, 0, 1});
}

}  // namespace late_answers_test

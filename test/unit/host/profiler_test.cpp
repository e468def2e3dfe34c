// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/profiler.hpp>

#include <cstddef>
#include <tuple>
#include <vector>

#include <stagger/core/tensor.hpp>

#include "catch.hpp"

namespace sg = stagger;

namespace {

using Row = std::vector<double>;

/// Counts its calls; checks that it sees its own parameters.
struct Calls {
  int forward = 0, input = 0, weight = 0, whole = 0;
};

/// y = x + w, its backward in two halves.
struct Shift {
  using Input = Row;
  using Output = Row;
  struct Saved {
    double first = 0;
  };
  Calls* calls;
  sg::Parameter<float> w{"w", {1, 2, 3}};

  void forward(sg::Context& context, Row const& x, Row& y, Saved& saved) {
    ++calls->forward;
    y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += context[w][i % 3];
    saved.first = x.front();
  }
  void backward_input(sg::Context&, Row const&, Row const& dy, Row& dx, Saved&) {
    ++calls->input;
    dx = dy;
  }
  void backward_weight(sg::Context& context, Row const& x, Row const& dy, Saved& saved) {
    ++calls->weight;
    CHECK(saved.first == x.front());
    for (std::size_t i = 0; i < dy.size(); ++i)
      context.gradient(w)[i % 3] += static_cast<float>(dy[i]);
  }
  auto parameters() { return std::tie(w); }
};

/// Twice as long a row, its backward in one, with a double.
struct Double {
  using Input = Row;
  using Output = Row;
  Calls* calls;
  sg::Parameter<double> w{"w", {0.5}};

  void forward(sg::Context& context, Row const& x, Row& y, sg::NothingSaved&) {
    ++calls->forward;
    CHECK(context[w][0] == 0.5);
    y = x;
    y.insert(y.end(), x.begin(), x.end());
  }
  void backward(sg::Context& context, Row const& x, Row const& dy, Row& dx, sg::NothingSaved&) {
    ++calls->whole;
    CHECK(dy.size() == 2 * x.size());
    context.gradient(w)[0] += dy.front();
    dx = x;
  }
  auto parameters() { return std::tie(w); }
};

}  // namespace

TEST_CASE("host/profile: every layer once, warmed up, on what the one before computed", "[host]") {
  Calls shift, twice;
  sg::Sequential const model{Shift{&shift}, std::vector<Shift>(2, Shift{&shift}), Double{&twice},
                             Shift{&shift}};
  auto const p = sg::host::profile(model, Row{1, 2, 3, 4},
                                   {.name = "m", .batch = 4, .warm_ups = 3, .repeats = 5});
  CHECK(p.name == "m");
  CHECK(p.batch == 4);
  REQUIRE(p.layers.size() == 5);
  CHECK(shift.forward == 4 * 8);
  CHECK(shift.input == 4 * 8);
  CHECK(shift.weight == 4 * 8);
  CHECK(twice.forward == 8);
  CHECK(twice.whole == 8);
  for (std::size_t l = 0; l < 5; ++l) {
    CAPTURE(l);
    auto const& layer = p.layers[l];
    CHECK(layer.forward_s >= 0);
    bool const whole = l == 3;
    CHECK(layer.backward_weight_s.has_value() == !whole);
    if (!whole) CHECK(*layer.backward_weight_s <= layer.backward_s);
    CHECK(layer.parameter_bytes == (whole ? 8U : 12U));
    CHECK(layer.activation_bytes == sizeof(Row));  // no bytes() of its own: the size of the type
    CHECK(layer.stash_bytes == sizeof(Row) + (whole ? 0 : sizeof(double)));
  }
}

namespace {

/// Tensors know their bytes.
struct Copy {
  using Input = sg::Tensor<float>;
  using Output = sg::Tensor<float>;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

}  // namespace

TEST_CASE("host/profile: activations are counted as the engine counts them", "[host]") {
  sg::Tensor<float> x;
  x.resize({16, 8});
  auto const p = sg::host::profile(sg::Sequential{Copy{}, Copy{}}, x);
  CHECK(p.layers[1].activation_bytes == x.bytes());
  CHECK(p.layers[1].stash_bytes == x.bytes());
  CHECK(p.layers[1].parameter_bytes == 0);
  CHECK_THROWS_WITH(sg::host::profile(sg::Sequential{Copy{}}, x, {.repeats = 0}),
                    Catch::Contains("0 repeats"));
}

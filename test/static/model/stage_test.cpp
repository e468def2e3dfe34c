// SPDX-License-Identifier: Apache-2.0
// What is a stage although it is written in a way of its own. What is none: test/compile_fail/stage_*.cpp.

#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

#include <stagger/core/tensor.hpp>
#include <stagger/model/stage.hpp>

namespace sg = stagger;

namespace {

using Values = std::vector<float>;

struct Flow {
  using Input = Values;
  using Output = Values;
};

struct ConstFunctions : Flow {
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved&) const;
  void backward(sg::Context&, Values const&, Values const&, Values&, sg::NothingSaved&) const;
};
static_assert(sg::Stage<ConstFunctions>);

struct NothingSavedByValue : Flow {  // there is nothing to lose
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved);
  void backward(sg::Context&, Values const&, Values const&, Values&, sg::NothingSaved);
};
static_assert(sg::Stage<NothingSavedByValue>);

struct NoDefaultConstructor : Flow {
  explicit NoDefaultConstructor(int);
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved&);
  void backward(sg::Context&, Values const&, Values const&, Values&, sg::NothingSaved&);
};
static_assert(sg::Stage<NoDefaultConstructor>);

struct Deduced : Flow {
  struct Saved {
    Values slope;
  };
  void forward(sg::Context&, auto const& x, auto& y, auto& saved);
  void backward(sg::Context&, auto const& x, auto const& dy, auto&& dx, auto&& saved);
};
static_assert(sg::Stage<Deduced>);

struct Forwarding : Flow {
  struct Saved {
    Values slope;
  };
  void forward(sg::Context&, auto&& x, auto&& y, auto&& saved);
  void backward_input(sg::Context&, auto&& x, auto&& dy, auto&& dx, auto&& saved);
};
static_assert(sg::Stage<Forwarding>);

struct Views : Flow {  // of results whose size is known
  void forward(sg::Context&, std::span<float const> x, std::span<float> y, sg::NothingSaved&);
  void backward(sg::Context&, std::span<float const> x, std::span<float const> dy,
                std::span<float> dx, sg::NothingSaved&);
};
static_assert(sg::Stage<Views>);

struct ReadsSaved : Flow {
  struct Saved {
    Values slope;
  };
  void forward(sg::Context&, Values const&, Values&, Saved&);
  void backward(sg::Context&, Values const&, Values const&, Values&, Saved const&);
};
static_assert(sg::Stage<ReadsSaved>);

struct Overloaded : Flow {
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved&);
  void forward(sg::Context&, sg::Tensor<> const&, sg::Tensor<>, sg::NothingSaved&);
  void backward(sg::Context&, Values const&, Values const&, Values&, sg::NothingSaved&);
};
static_assert(sg::Stage<Overloaded>);

struct TwoTies : Flow {
  sg::Parameter<> a{"a", {1}};
  sg::Parameter<double> b{"b", std::vector<double>{1}};
  auto parameters() { return std::tuple_cat(std::tie(a), std::tie(b)); }
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved&);
  void backward_weight(sg::Context&, Values const&, Values const&, sg::NothingSaved&);
};
static_assert(sg::Stage<TwoTies> && !sg::HasInputGradient<TwoTies>);

struct NoParameters : Flow {
  auto parameters() { return std::tie(); }
  void forward(sg::Context&, Values const&, Values&, sg::NothingSaved&);
  void backward(sg::Context&, Values const&, Values const&, Values&, sg::NothingSaved&);
};
static_assert(sg::Stage<NoParameters>);

template <class Saved> struct Fills : Flow {
  void forward(sg::Context&, Values const&, Values&, Saved);
};
struct SavesByReference : Fills<Values&> {
  using Saved = Values;
};
struct SavesACopy : Fills<Values> {
  using Saved = Values;
};
struct SavesNumberInACopy : Fills<float> {
  using Saved = float;
};
static_assert(!sg::detail::LosesSaved<SavesByReference>);
static_assert(sg::detail::LosesSaved<SavesACopy>);
static_assert(sg::detail::LosesSaved<SavesNumberInACopy>);

}  // namespace

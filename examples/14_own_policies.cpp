// SPDX-License-Identifier: Apache-2.0
// Six policies of your own: schedule, staleness, partitioner, placement, optimizer and loss; and an
// observer that logs the norm of each layer's gradients.
// Nothing is registered anywhere: `with` tells them apart by their tags and takes them in any
// order.
//
// Build:  g++ -std=c++20 -O2 -I include examples/14_own_policies.cpp -pthread -o own
// expect: steps: loss 0\.[0-9]+ -> 0\.00
// expect: step 300: gradient norms [0-9.e-]+ and [0-9.e-]+
// expect: stream: loss 0\.[0-9]+ -> 0\.00
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <tuple>
#include <vector>

#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/observe.hpp>
namespace sg = stagger;

// 1F1B if there are more microbatches than ranks, otherwise GPipe, which is as fast then.
struct WhereItPays {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;  // every rank is idle when an iteration ends
  static constexpr bool proven = true;   // as both schedules are
  int chunks() const { return 1; }       // stages on each rank
  sg::schedule::Table table(sg::Shape shape) const {
    bool const enough = shape.microbatches > shape.ranks;
    return enough ? sg::schedule::OneFOneB{}.table(shape) : sg::schedule::GPipe{}.table(shape);
  }
};

// Each stage uses the weights of its last even update, so that only half as many versions are kept.
struct EvenUpdates {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  int microbatches() const { return 1; }  // of a minibatch
  int version(int, int available) const { return available / 2 * 2; }
};

// The first layer is a stage of its own, all others are the second stage.
struct FirstAlone {
  using policy_tag = sg::PartitionTag;
  std::vector<int> cuts(int layers) const {
    if (layers < 2) throw sg::Error(sg::Errc::bad_configuration, "give FirstAlone 2 layers");
    return {1};  // the first layer of the second stage
  }
};

// Ranks are assigned to places in turn (round robin).
struct RoundRobin {
  using policy_tag = sg::PlacementTag;
  std::vector<int> place(int ranks, int places) const {
    std::vector<int> place;
    for (int r = 0; r < ranks; ++r) place.push_back(r % places);
    return place;
  }
};

// Sign descent: every value moves by the same amount, against the sign of its gradient.
struct SignDescent {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;            // values kept for each value of a parameter
  static constexpr bool element_wise = true;  // no element depends on another one
  double rate = 1e-3;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double, std::int64_t) const noexcept {
    for (std::size_t i = 0; i < v.size; ++i) {
      T const sign = static_cast<T>((v.gradient[i] > 0) - (v.gradient[i] < 0));
      v.next[i] = v.value[i] - static_cast<T>(rate) * sign;
    }
  }
};

// Huber loss: quadratic near the target, linear far from it.
struct Huber {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }  // the engine divides by those of the minibatch
  double value(sg::Context&, float const& y, float const& target) const {
    double const far = std::fabs(static_cast<double>(y) - static_cast<double>(target));
    return far < 1 ? far * far / 2 : far - 0.5;
  }
  double value_and_gradient(sg::Context& c, float const& y, float const& target, double scale,
                            float& dy) const {
    double const slope = static_cast<double>(y) - static_cast<double>(target);
    dy = static_cast<float>(scale * std::fmax(-1.0, std::fmin(1.0, slope)));
    return value(c, y, target);
  }
};

struct Neuron {  // y = tanh(a x), one number
  using Input = float;
  using Output = float;
  struct Saved {
    float y = 0;
  };
  sg::Parameter<> a{"a", {1}};

  void forward(sg::Context& c, float const& x, float& y, Saved& saved) {
    y = saved.y = std::tanh(c[a][0] * x);
  }
  void backward(sg::Context& c, float const& x, float const& dy, float& dx, Saved& saved) {
    float const g = dy * (1 - saved.y * saved.y);
    dx = g * c[a][0];
    c.gradient(a)[0] += g * x;
  }
  auto parameters() { return std::tie(a); }
};

// Logs the norms of two layers' gradients, every 100th step.
class GradientNorms final : public sg::StepObserver {
 public:
  void begin_step(sg::ObservedStep const&) override {
    for (auto& sum : squares_) sum = 0;
  }
  void gradient(sg::ParameterGradient const& of) override {  // perhaps on several threads at once
    double sum = 0;
    for (float const g : of.values<float>()) sum += double{g} * double{g};
    squares_.at(static_cast<std::size_t>(of.layer)) += sum;
  }
  void end_step(sg::ObservedStep const& step, std::exception_ptr const& why) noexcept override {
    if (why || !step.training || step.number % 100 != 0) return;
    std::printf("step %d: gradient norms %.1e and %.1e\n", static_cast<int>(step.number),
                std::sqrt(squares_[0].load()), std::sqrt(squares_[1].load()));
  }

 private:
  std::array<std::atomic<double>, 2> squares_{};  // [layers] of the current step
};

int main() {
  sg::Batch<float, float> batch;
  for (int i = 0; i < 400; ++i) {
    float const x = std::sin(static_cast<float>(i));
    batch.inputs.push_back(x);
    batch.targets.push_back(std::tanh(2 * std::tanh(3 * x)));
  }
  sg::Sequential const model{Neuron{}, Neuron{}};

  auto steps = sg::Pipeline{model}.with(WhereItPays{}, FirstAlone{}, RoundRobin{}, Huber{},
                                        SignDescent{.rate = 0.01}, sg::host::Threads{2},
                                        sg::Observe{std::make_shared<GradientNorms>()});
  double const before = sg::run(steps.step(batch)).loss;
  double after = 0;
  for (int s = 0; s < 300; ++s) after = sg::run(steps.step(batch)).loss;
  std::printf("steps: loss %.4f -> %.4f\n", before, after);

  // Training without a flush, in which each microbatch is a minibatch.
  auto stream = sg::Pipeline{model}.with(sg::schedule::PipeDream{}, EvenUpdates{}, FirstAlone{},
                                         Huber{}, SignDescent{.rate = 0.005});
  double const first = sg::run(stream.stream(batch)).loss;
  double const second = sg::run(stream.stream(batch)).loss;
  std::printf("stream: loss %.4f -> %.4f\n", first, second);
}

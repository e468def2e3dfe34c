// SPDX-License-Identifier: Apache-2.0
// A framework that has everything already (values behind shared pointers, layers with weights,
// gradients and an optimizer of their own) and a training loop. The same layers are then stages of
// a pipeline on two threads, which orders their calls and passes on their values.
//
// Prints: the loss of the loop and of the pipeline after some steps, and whether the weights agree
// expect: loop     0\.0[0-9]+
// expect: pipeline 0\.0[0-9]+
// expect: same weights: yes
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/stagger.hpp>

namespace sg = stagger;

// --- the framework, which knows nothing of pipelines --------------------------------------------

namespace nn {

struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<float> data = std::vector<float>(rows * columns);
};
using Value = std::shared_ptr<Matrix const>;
using Mutable = std::shared_ptr<Matrix>;

Mutable make(std::size_t rows, std::size_t columns) {
  return std::make_shared<Matrix>(Matrix{.rows = rows, .columns = columns});
}

/// y = tanh(x W), with W [in, out], its gradient, and an optimizer with momentum.
class Layer {
 public:
  Layer(std::size_t in, std::size_t out, unsigned seed)
      : in_(in), out_(out), w_(in * out), dw_(in * out), momentum_(in * out) {
    for (float& w : w_)
      w = static_cast<float>((seed = seed * 1664525U + 1013904223U) >> 8) / (1 << 24) - 0.5F;
  }
  Value forward(Value const& x) const {
    auto const y = make(x->rows, out_);
    for (std::size_t r = 0; r < x->rows; ++r)
      for (std::size_t o = 0; o < out_; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < in_; ++i) sum += x->data[r * in_ + i] * w_[i * out_ + o];
        y->data[r * out_ + o] = std::tanh(sum);
      }
    return y;
  }
  /// Adds to the weights' gradient.
  Value backward(Value const& x, Value const& y, Value const& dy) {
    auto const dx = make(x->rows, in_);
    for (std::size_t r = 0; r < x->rows; ++r)
      for (std::size_t o = 0; o < out_; ++o) {
        float const t = y->data[r * out_ + o];
        float const d = dy->data[r * out_ + o] * (1 - t * t);
        for (std::size_t i = 0; i < in_; ++i) {
          dx->data[r * in_ + i] += d * w_[i * out_ + o];
          dw_[i * out_ + o] += d * x->data[r * in_ + i];
        }
      }
    return dx;
  }
  void step() {
    for (std::size_t i = 0; i < w_.size(); ++i) {
      momentum_[i] = 0.9F * momentum_[i] + dw_[i];
      w_[i] -= 0.05F * momentum_[i];
      dw_[i] = 0;
    }
  }
  [[nodiscard]] std::vector<float> const& weights() const { return w_; }

 private:
  std::size_t in_, out_;
  std::vector<float> w_, dw_, momentum_;
};

/// The sum of squares over a microbatch, and `scale` times its gradient.
double loss(Value const& y, Value const& target, double scale, Value& dy) {
  auto const gradient = make(y->rows, y->columns);
  double sum = 0;
  for (std::size_t i = 0; i < y->data.size(); ++i) {
    float const off = y->data[i] - target->data[i];
    sum += double{off} * off;
    gradient->data[i] = 2 * static_cast<float>(scale) * off;
  }
  dy = gradient;
  return sum;
}

using Model = std::vector<std::shared_ptr<Layer>>;
Model model() {
  return {std::make_shared<Layer>(8, 16, 1), std::make_shared<Layer>(16, 16, 2),
          std::make_shared<Layer>(16, 16, 3), std::make_shared<Layer>(16, 2, 4)};
}

/// One step over microbatches of `terms` elements in all. @return the loss
double train_step(Model& layers, std::vector<Value> const& xs, std::vector<Value> const& targets,
                  double terms) {
  double sum = 0;
  for (std::size_t m = 0; m < xs.size(); ++m) {
    std::vector<Value> values{xs[m]};
    for (auto const& layer : layers) values.push_back(layer->forward(values.back()));
    Value d;
    sum += loss(values.back(), targets[m], 1 / terms, d);
    for (std::size_t l = layers.size(); l-- > 0;)
      d = layers[l]->backward(values[l], values[l + 1], d);
  }
  for (auto const& layer : layers) layer->step();
  return sum / terms;
}

}  // namespace nn

// --- what the pipeline needs ---------------------------------------------------------------------

struct Stage {
  using Input = nn::Value;
  using Output = nn::Value;
  using Saved = nn::Value;  // the output, which backward reads
  std::shared_ptr<nn::Layer> layer;

  void forward(sg::Context&, Input const& x, Output& y, Saved& saved) {
    y = saved = layer->forward(x);
  }
  void backward(sg::Context&, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    dx = layer->backward(x, saved, dy);
  }
  void gradients_complete(sg::Context&) { layer->step(); }
};

struct Loss {
  using policy_tag = sg::LossTag;
  using Target = nn::Value;
  double terms(Target const& target) const { return static_cast<double>(target->data.size()); }
  double value(sg::Context&, nn::Value const& y, Target const& target) const {
    nn::Value unused;
    return nn::loss(y, target, 0, unused);
  }
  double value_and_gradient(sg::Context&, nn::Value const& y, Target const& target, double scale,
                            nn::Value& dy) const {
    return nn::loss(y, target, scale, dy);
  }
};

int main() {
  sg::Batch<nn::Value, nn::Value> batch;
  for (int m = 0; m < 8; ++m) {
    auto const x = nn::make(4, 8);
    auto const target = nn::make(4, 2);
    for (std::size_t i = 0; i < x->data.size(); ++i)
      x->data[i] = std::sin(static_cast<float>(m) + 0.7F * static_cast<float>(i));
    for (std::size_t i = 0; i < target->data.size(); ++i)
      target->data[i] = 0.5F * x->data[4 * i] * x->data[4 * i + 1];
    batch.inputs.push_back(x);
    batch.targets.push_back(target);
  }

  nn::Model looped = nn::model();
  nn::Model piped = nn::model();
  std::vector<Stage> stages;
  for (auto const& layer : piped) stages.push_back({layer});
  auto train = sg::Pipeline{sg::Sequential{std::move(stages)}}.with(
      sg::partition::Even{.stages = 2}, sg::schedule::ZeroBubbleH1{}, sg::host::Threads{2}, Loss{});

  double loop_loss = 0;
  double pipeline_loss = 0;
  for (int step = 0; step < 200; ++step) {
    loop_loss = nn::train_step(looped, batch.inputs, batch.targets, 8 * 4 * 2);
    pipeline_loss = sg::run(train.step(batch)).loss;
  }
  bool same = true;
  for (std::size_t l = 0; l < looped.size(); ++l)
    same = same && looped[l]->weights() == piped[l]->weights();
  std::printf("loop     %.6f\npipeline %.6f\nsame weights: %s\n", loop_loss, pipeline_loss,
              same ? "yes" : "no");
}

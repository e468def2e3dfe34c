// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The transformer's layers on a GPU. Names, sizes and initial values of the parameters are
/// those of ../model, so that checkpoints are interchangeable.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/model/sequential.hpp>

#include "../model/model.hpp"
#include "kernels.hpp"
#include "products.hpp"

namespace gpt::gpu {

/// Tokens of one microbatch on the device, [sequences][length].
using DeviceTokens = stagger::cuda::Tensor<std::uint8_t>;

namespace detail {

/// The parameters of a layer, declared by the host's version of the layer.
template <class HostLayer> class Declared {
 public:
  explicit Declared(HostLayer layer) : layer_(std::move(layer)) {}
  auto parameters() { return layer_.parameters(); }

 protected:
  template <std::size_t I> float const* value(stagger::Context& context) {
    return context[std::get<I>(layer_.parameters())].data();
  }
  template <std::size_t I> float* gradient(stagger::Context& context) {
    return context.gradient(std::get<I>(layer_.parameters())).data();
  }
  template <std::size_t I> std::size_t size() { return std::get<I>(layer_.parameters()).size(); }

  /// A weight in the type of the matrix products.
  template <std::size_t I, class T>
  T const* weight(stagger::Context& context, Workspace<T>& workspace) {
    if constexpr (std::is_same_v<T, float>) {
      return value<I>(context);
    } else {
      workspace.weight.resize({size<I>()});
      Kernels<T>::cast(value<I>(context), workspace.weight.data(), size<I>());
      return workspace.weight.data();
    }
  }

  /// Gradient of weight and bias of output = input * weight + bias.
  template <std::size_t Weight, std::size_t Bias, class T>
  void add_product(stagger::Context& context, Workspace<T>& workspace, T const* input,
                   T const* doutput, std::size_t rows) {
    std::size_t const outputs = size<Bias>();
    add_weight<Weight>(context, workspace, input, doutput, rows, outputs);
    Kernels<T>::add_columns(doutput, gradient<Bias>(context), rows, outputs);
  }
  template <std::size_t Weight, class T>
  void add_weight(stagger::Context& context, Workspace<T>& workspace, T const* input,
                  T const* doutput, std::size_t rows, std::size_t outputs) {
    std::size_t const inputs = size<Weight>() / outputs;
    workspace.product(
        Matrix<T const>{input, inputs}.transposed(), Matrix<T const>{doutput, outputs},
        Matrix<float>{gradient<Weight>(context), outputs}, inputs, outputs, rows, 1, 1);
  }

  HostLayer layer_;
};

/// What a normalisation saves for the backward pass.
template <class T> struct SavedNorm {
  stagger::cuda::Tensor<T> normal;         // [rows][width]
  stagger::cuda::Tensor<float> scale;      // [rows]
  stagger::cuda::Tensor<float> gradients;  // [2][width] of this microbatch: gain, bias
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return normal.bytes() + scale.bytes() + gradients.bytes();
  }
  void resize(std::size_t rows, std::size_t width) {
    normal.resize({rows, width});
    scale.resize({rows});
  }
  /// dx = residual + the gradient through the normalisation; keeps the gradients of the parameters.
  void backward(T const* dy, T const* residual, float const* gain, T* dx) {
    std::size_t const rows = normal.extent(0);
    std::size_t const width = normal.extent(1);
    gradients.resize({2, width});
    Kernels<T>::norm_gradients(dy, normal.data(), gradients.data(), gradients.data() + width, rows,
                               width);
    Kernels<T>::norm_backward(dy, residual, normal.data(), scale.data(), gain, dx, rows, width);
  }
  void add_gradients(float* gain, float* bias) const {
    std::size_t const width = normal.extent(1);
    add(gain, gradients.data(), width);
    add(bias, gradients.data() + width, width);
  }
};

}  // namespace detail

template <class T> class Embedding : public detail::Declared<gpt::Embedding<float>> {
 public:
  using Input = DeviceTokens;
  using Output = stagger::cuda::Tensor<T>;

  Embedding(gpt::Embedding<float> host, std::size_t width)
      : Declared(std::move(host)), width_(width) {}

  void forward(stagger::Context& context, Input const& x, Output& y, stagger::NothingSaved&) {
    y.resize({x.extent(0), x.extent(1), width_});
    Kernels<T>::embed(x.data(), this->template value<0>(context), this->template value<1>(context),
                      y.data(), x.extent(0), x.extent(1), width_);
  }
  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       stagger::NothingSaved&) {
    Kernels<T>::embed_gradients(x.data(), dy.data(), this->template gradient<0>(context),
                                this->template gradient<1>(context), x.extent(0), x.extent(1),
                                width_);
  }

 private:
  std::size_t width_;
};

template <class T> class HalfBlock : public detail::Declared<gpt::HalfBlock<float>> {
 public:
  using Input = stagger::cuda::Tensor<T>;
  using Output = stagger::cuda::Tensor<T>;

  struct Saved {
    detail::SavedNorm<T> norm;
    stagger::cuda::Tensor<T> first, dfirst;  // [rows][3 width], or [rows][4 width] and nothing
    stagger::cuda::Tensor<T> share;          // [sequences][heads][length][length]
    stagger::cuda::Tensor<T> middle;         // [rows][width] or [rows][4 width]
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return norm.bytes() + first.bytes() + dfirst.bytes() + share.bytes() + middle.bytes();
    }
  };

  /// @param heads  of attention; 0: an MLP
  HalfBlock(gpt::HalfBlock<float> host, std::size_t width, std::size_t heads,
            std::shared_ptr<Workspaces<T>> workspaces)
      : Declared(std::move(host)),
        width_(width),
        heads_(heads),
        workspaces_(std::move(workspaces)) {}

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    T* const normal = workspace.normal.data();
    saved.norm.resize(rows, width_);
    Kernels<T>::norm(x.data(), this->template value<norm_gain>(context),
                     this->template value<norm_bias>(context), normal, saved.norm.normal.data(),
                     saved.norm.scale.data(), rows, width_);
    saved.first.resize({rows, first_columns()});
    affine<first_weight, first_bias>(context, workspace, normal, nullptr, saved.first.data(), rows);
    if (heads_ != 0) {
      attend(workspace, x, saved);
    } else {
      saved.middle.resize_like(saved.first);
      Kernels<T>::gelu(saved.first.data(), saved.middle.data(), saved.first.size());
    }
    y.resize_like(x);
    affine<second_weight, second_bias>(context, workspace, saved.middle.data(), x.data(), y.data(),
                                       rows);
  }

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.wide.resize_like(saved.middle);
    workspace.narrow.resize({rows, width_});
    T* const narrow = workspace.narrow.data();
    back<second_weight>(context, workspace, dy.data(), workspace.wide.data(), rows, width_);
    if (heads_ != 0)
      attend_backward(workspace, x, workspace.wide.data(), saved);
    else
      Kernels<T>::multiply(saved.first.data(), workspace.wide.data(), saved.first.size());
    back<first_weight>(context, workspace, dfirst(saved), narrow, rows, first_columns());
    dx.resize_like(x);
    saved.norm.backward(narrow, dy.data(), this->template value<norm_gain>(context), dx.data());
  }

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy, Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    T* const normal = workspace.normal.data();
    this->template add_product<second_weight, second_bias>(context, workspace, saved.middle.data(),
                                                           dy.data(), rows);
    Kernels<T>::norm_output(saved.norm.normal.data(), this->template value<norm_gain>(context),
                            this->template value<norm_bias>(context), normal, rows, width_);
    this->template add_product<first_weight, first_bias>(context, workspace, normal, dfirst(saved),
                                                         rows);
    saved.norm.add_gradients(this->template gradient<norm_gain>(context),
                             this->template gradient<norm_bias>(context));
  }

 private:
  enum : std::size_t {  // in the order of gpt::HalfBlock::parameters()
    norm_gain,
    norm_bias,
    first_weight,
    first_bias,
    second_weight,
    second_bias
  };

  [[nodiscard]] std::size_t first_columns() const { return (heads_ != 0 ? 3 : 4) * width_; }
  /// The gradient of what the first projection gave.
  [[nodiscard]] T const* dfirst(Saved const& saved) const {
    return (heads_ != 0 ? saved.dfirst : saved.first).data();
  }

  /// y = residual + bias + input * weight.
  template <std::size_t Weight, std::size_t Bias>
  void affine(stagger::Context& context, Workspace<T>& workspace, T const* input, T const* residual,
              T* y, std::size_t rows) {
    std::size_t const outputs = this->template size<Bias>();
    std::size_t const inputs = this->template size<Weight>() / outputs;
    T const* const w = this->template weight<Weight>(context, workspace);
    Kernels<T>::add_bias(residual, this->template value<Bias>(context), y, rows, outputs);
    workspace.product(Matrix<T const>{input, inputs}, Matrix<T const>{w, outputs},
                      Matrix<T>{y, outputs}, rows, outputs, inputs, 1, 1);
  }
  /// dinput = doutput * weight'.
  template <std::size_t Weight>
  void back(stagger::Context& context, Workspace<T>& workspace, T const* doutput, T* dinput,
            std::size_t rows, std::size_t outputs) {
    std::size_t const inputs = this->template size<Weight>() / outputs;
    T const* const w = this->template weight<Weight>(context, workspace);
    workspace.product(Matrix<T const>{doutput, outputs}, Matrix<T const>{w, outputs}.transposed(),
                      Matrix<T>{dinput, inputs}, rows, inputs, outputs, 1, 0);
  }

  [[nodiscard]] float depth_scale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(width_ / heads_)));
  }
  /// The parts of a [rows][columns] matrix that belong to the heads of a sequence.
  template <class E>
  Matrix<E> heads(E* matrix, std::size_t columns, std::size_t first, std::size_t sequence,
                  std::size_t length) const {
    return {matrix + sequence * length * columns + first, columns, width_ / heads_};
  }

  void attend(Workspace<T>& workspace, Input const& x, Saved& saved) {
    std::size_t const length = x.extent(1);
    std::size_t const depth = width_ / heads_;
    std::size_t const square = length * length;
    saved.share.resize({x.extent(0), heads_, length, length});
    saved.middle.resize({x.extent(0) * length, width_});
    T const* const qkv = saved.first.data();
    for (std::size_t i = 0; i < x.extent(0); ++i)
      workspace.product(heads(qkv, 3 * width_, 0, i, length),
                        heads(qkv, 3 * width_, width_, i, length).transposed(),
                        Matrix<T>{saved.share.data() + i * heads_ * square, length, square}, length,
                        length, depth, depth_scale(), 0, heads_);
    Kernels<T>::causal_softmax(saved.share.data(), x.extent(0) * heads_ * length, length);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      workspace.product(Matrix<T const>{saved.share.data() + i * heads_ * square, length, square},
                        heads(qkv, 3 * width_, 2 * width_, i, length),
                        heads(saved.middle.data(), width_, 0, i, length), length, depth, length, 1,
                        0, heads_);
  }

  void attend_backward(Workspace<T>& workspace, Input const& x, T const* dmixed, Saved& saved) {
    std::size_t const length = x.extent(1);
    std::size_t const depth = width_ / heads_;
    std::size_t const square = length * length;
    workspace.shares.resize_like(saved.share);
    saved.dfirst.resize_like(saved.first);
    T const* const qkv = saved.first.data();
    T* const dqkv = saved.dfirst.data();
    auto const share = [&](T* shares, std::size_t i) {
      return Matrix<T>{shares + i * heads_ * square, length, square};
    };
    auto const read = [](Matrix<T> m) { return Matrix<T const>{m.data, m.columns, m.stride}; };
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      auto const dm = heads(dmixed, width_, 0, i, length);
      workspace.product(dm, heads(qkv, 3 * width_, 2 * width_, i, length).transposed(),
                        share(workspace.shares.data(), i), length, length, depth, 1, 0, heads_);
      workspace.product(read(share(saved.share.data(), i)).transposed(), dm,
                        heads(dqkv, 3 * width_, 2 * width_, i, length), length, depth, length, 1, 0,
                        heads_);
    }
    Kernels<T>::softmax_backward(saved.share.data(), workspace.shares.data(),
                                 x.extent(0) * heads_ * length, length, depth_scale());
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      auto const ds = read(share(workspace.shares.data(), i));
      workspace.product(ds, heads(qkv, 3 * width_, width_, i, length),
                        heads(dqkv, 3 * width_, 0, i, length), length, depth, length, 1, 0, heads_);
      workspace.product(ds.transposed(), heads(qkv, 3 * width_, 0, i, length),
                        heads(dqkv, 3 * width_, width_, i, length), length, depth, length, 1, 0,
                        heads_);
    }
  }

  std::size_t width_;
  std::size_t heads_;
  std::shared_ptr<Workspaces<T>> workspaces_;
};

template <class T> class Head : public detail::Declared<gpt::Head<float>> {
 public:
  using Input = stagger::cuda::Tensor<T>;
  using Output = stagger::cuda::Tensor<T>;  ///< [sequences][length][256]
  struct Saved {
    detail::SavedNorm<T> norm;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return norm.bytes(); }
  };

  Head(gpt::Head<float> host, std::size_t width, std::shared_ptr<Workspaces<T>> workspaces)
      : Declared(std::move(host)), width_(width), workspaces_(std::move(workspaces)) {}

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    saved.norm.resize(rows, width_);
    Kernels<T>::norm(x.data(), this->template value<0>(context), this->template value<1>(context),
                     workspace.normal.data(), saved.norm.normal.data(), saved.norm.scale.data(),
                     rows, width_);
    y.resize({x.extent(0), x.extent(1), logits});
    T const* const w = this->template weight<2>(context, workspace);
    workspace.product(Matrix<T const>{workspace.normal.data(), width_}, Matrix<T const>{w, logits},
                      Matrix<T>{y.data(), logits}, rows, logits, width_, 1, 0);
  }
  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.narrow.resize({rows, width_});
    T const* const w = this->template weight<2>(context, workspace);
    workspace.product(Matrix<T const>{dy.data(), logits}, Matrix<T const>{w, logits}.transposed(),
                      Matrix<T>{workspace.narrow.data(), width_}, rows, width_, logits, 1, 0);
    dx.resize_like(x);
    saved.norm.backward(workspace.narrow.data(), nullptr, this->template value<0>(context),
                        dx.data());
  }
  void backward_weight(stagger::Context& context, Input const& x, Output const& dy, Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    Kernels<T>::norm_output(saved.norm.normal.data(), this->template value<0>(context),
                            this->template value<1>(context), workspace.normal.data(), rows,
                            width_);
    this->template add_weight<2>(context, workspace, static_cast<T const*>(workspace.normal.data()),
                                 dy.data(), rows, logits);
    saved.norm.add_gradients(this->template gradient<0>(context),
                             this->template gradient<1>(context));
  }

 private:
  static constexpr auto logits = static_cast<std::size_t>(classes);
  std::size_t width_;
  std::shared_ptr<Workspaces<T>> workspaces_;
};

/// Cross-entropy in nats, with one term per byte.
template <class T> class CrossEntropy {
 public:
  using policy_tag = stagger::LossTag;
  using Target = DeviceTokens;

  explicit CrossEntropy(std::shared_ptr<Workspaces<T>> workspaces)
      : workspaces_(std::move(workspaces)) {}

  [[nodiscard]] double terms(Target const& target) const {
    return static_cast<double>(target.size());
  }
  double value(stagger::Context& context, stagger::cuda::Tensor<T> const& y,
               Target const& target) const {
    return enqueue(context, y, target, 0, nullptr);
  }
  double value_and_gradient(stagger::Context& context, stagger::cuda::Tensor<T> const& y,
                            Target const& target, double scale,
                            stagger::cuda::Tensor<T>& dy) const {
    dy.resize_like(y);
    return enqueue(context, y, target, scale, dy.data());
  }

 private:
  double enqueue(stagger::Context& context, stagger::cuda::Tensor<T> const& y, Target const& target,
                 double scale, T* dy) const {
    Workspace<T>& workspace = workspaces_->current();
    workspace.losses.resize({target.size()});
    Kernels<T>::cross_entropy(y.data(), target.data(), workspace.losses.data(),
                              stagger::cuda::loss_place(context), dy, target.size(),
                              static_cast<std::size_t>(classes), scale);
    return 0;  // the kernel writes the loss to where the engine reads it
  }
  std::shared_ptr<Workspaces<T>> workspaces_;
};

template <class T>
using Model = stagger::Sequential<Embedding<T>, std::vector<HalfBlock<T>>, Head<T>>;

/// The same seed gives the same initial values as on the host.
template <class T>
[[nodiscard]] Model<T> make_model(ModelShape const& shape, std::uint64_t seed,
                                  std::shared_ptr<Workspaces<T>> const& workspaces) {
  auto host = gpt::make_model<float>(shape, seed);
  auto& [embedding, halves, head] = host.layers();
  auto const width = static_cast<std::size_t>(shape.width);
  std::vector<HalfBlock<T>> made;
  for (auto& half : halves)
    made.emplace_back(std::move(half), width,
                      made.size() % 2 == 0 ? static_cast<std::size_t>(shape.heads) : 0, workspaces);
  return Model<T>(Embedding<T>(std::move(embedding), width), std::move(made),
                  Head<T>(std::move(head), width, workspaces));
}

}  // namespace gpt::gpu

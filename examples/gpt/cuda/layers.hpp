// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The transformer's layers on a GPU. Names, sizes and initial values of the parameters are
/// those of ../model, so that checkpoints are interchangeable.

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/model/split.hpp>

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

  /// Gradient of a weight of output = input * weight.
  template <std::size_t Weight, class T>
  void add_weight(stagger::Context& context, Workspace<T>& workspace, Matrix<T const> input,
                  T const* doutput, std::size_t rows, std::size_t outputs) {
    std::size_t const inputs = size<Weight>() / outputs;
    workspace.product(input.transposed(), Matrix<T const>{doutput, outputs},
                      Matrix<float>{gradient<Weight>(context), outputs}, inputs, outputs, rows, 1,
                      1);
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

namespace detail {

/// Copies columns of a matrix into some of another one.
template <class T>
void copy_columns(Matrix<T> to, Matrix<T const> from, std::size_t columns, std::size_t rows) {
  stagger::cuda::check(cudaMemcpy2DAsync(to.data, to.columns * sizeof(T), from.data,
                                         from.columns * sizeof(T), columns * sizeof(T), rows,
                                         cudaMemcpyDeviceToDevice, stagger::cuda::stream()),
                       "copy columns");
}

/// The two projections of a half block, as gpt::Projections has them on the host.
/// @tparam HostLayer  whose parameters from number `At` on are theirs
template <class T, class HostLayer, std::size_t At> class Projecting : public Declared<HostLayer> {
 public:
  struct Saved {
    stagger::cuda::Tensor<T> first, dfirst;  // [rows][3 middle], or [rows][middle] and nothing
    stagger::cuda::Tensor<T> share;          // [sequences][heads][length][length]
    stagger::cuda::Tensor<T> middle;         // [rows][middle]
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return first.bytes() + dfirst.bytes() + share.bytes() + middle.bytes();
    }
  };

  /// @param heads   of attention; 0: an MLP
  /// @param middle  columns between the projections
  Projecting(HostLayer host, std::size_t width, std::size_t heads, std::size_t middle,
             std::shared_ptr<Workspaces<T>> workspaces)
      : Declared<HostLayer>(std::move(host)),
        width_(width),
        heads_(heads),
        middle_(middle),
        workspaces_(std::move(workspaces)) {}

 protected:
  using Values = stagger::cuda::Tensor<T>;

  [[nodiscard]] Workspace<T>& workspace() const { return workspaces_->current(); }
  [[nodiscard]] static std::size_t rows_of(Values const& x) { return x.extent(0) * x.extent(1); }
  /// Whether the residual and the last bias are its to add.
  [[nodiscard]] bool adds_once() { return this->template size<second_bias>() != 0; }

  /// y = the projections of `input`, behind the residual and the last bias, which y may hold.
  /// @param x  [sequences][length][...]
  void project(stagger::Context& context, Values const& x, Matrix<T const> input, T const* residual,
               T* y, Saved& saved) {
    Workspace<T>& scratch = workspace();
    std::size_t const rows = rows_of(x);
    saved.first.resize({rows, first_columns()});
    Kernels<T>::add_bias(nullptr, this->template value<first_bias>(context), saved.first.data(),
                         rows, first_columns());
    product<first_weight>(context, scratch, input, saved.first.data(), rows, width_,
                          first_columns(), 1);
    if (heads_ != 0) {
      attend(scratch, x, saved);
    } else {
      saved.middle.resize_like(saved.first);
      Kernels<T>::gelu(saved.first.data(), saved.middle.data(), saved.first.size());
    }
    if (adds_once())
      Kernels<T>::add_bias(residual, this->template value<second_bias>(context), y, rows, width_);
    product<second_weight>(context, scratch, {saved.middle.data(), middle_}, y, rows, middle_,
                           width_, adds_once() ? 1 : 0);
  }
  /// dinput = the gradient of what is projected.
  void project_backward(stagger::Context& context, Values const& x, T const* dy, Matrix<T> dinput,
                        Saved& saved) {
    Workspace<T>& scratch = workspace();
    std::size_t const rows = rows_of(x);
    scratch.wide.resize_like(saved.middle);
    back<second_weight>(context, scratch, dy, {scratch.wide.data(), middle_}, rows, middle_,
                        width_);
    if (heads_ != 0)
      attend_backward(scratch, x, scratch.wide.data(), saved);
    else
      Kernels<T>::multiply(saved.first.data(), scratch.wide.data(), saved.first.size());
    back<first_weight>(context, scratch, dfirst(saved), dinput, rows, width_, first_columns());
  }
  void add_gradients(stagger::Context& context, Values const& x, Matrix<T const> input, T const* dy,
                     Saved const& saved) {
    Workspace<T>& scratch = workspace();
    std::size_t const rows = rows_of(x);
    this->template add_weight<second_weight>(context, scratch, {saved.middle.data(), middle_}, dy,
                                             rows, width_);
    if (adds_once())
      Kernels<T>::add_columns(dy, this->template gradient<second_bias>(context), rows, width_);
    this->template add_weight<first_weight>(context, scratch, input, dfirst(saved), rows,
                                            first_columns());
    Kernels<T>::add_columns(dfirst(saved), this->template gradient<first_bias>(context), rows,
                            first_columns());
  }

  std::size_t width_;
  std::size_t heads_;
  std::size_t middle_;
  std::shared_ptr<Workspaces<T>> workspaces_;

 private:
  enum : std::size_t {  // in the order of gpt::Projections::parameters()
    first_weight = At,
    first_bias,
    second_weight,
    second_bias
  };

  [[nodiscard]] std::size_t first_columns() const { return (heads_ != 0 ? 3 : 1) * middle_; }
  /// The gradient of what the first projection gave.
  [[nodiscard]] T const* dfirst(Saved const& saved) const {
    return (heads_ != 0 ? saved.dfirst : saved.first).data();
  }

  /// y = beta y + input * weight.
  template <std::size_t Weight>
  void product(stagger::Context& context, Workspace<T>& scratch, Matrix<T const> input, T* y,
               std::size_t rows, std::size_t inputs, std::size_t outputs, float beta) {
    T const* const w = this->template weight<Weight>(context, scratch);
    scratch.product(input, Matrix<T const>{w, outputs}, Matrix<T>{y, outputs}, rows, outputs,
                    inputs, 1, beta);
  }
  /// dinput = doutput * weight'.
  template <std::size_t Weight>
  void back(stagger::Context& context, Workspace<T>& scratch, T const* doutput, Matrix<T> dinput,
            std::size_t rows, std::size_t inputs, std::size_t outputs) {
    T const* const w = this->template weight<Weight>(context, scratch);
    scratch.product(Matrix<T const>{doutput, outputs}, Matrix<T const>{w, outputs}.transposed(),
                    dinput, rows, inputs, outputs, 1, 0);
  }

  [[nodiscard]] std::size_t depth() const { return middle_ / heads_; }
  [[nodiscard]] float depth_scale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(depth())));
  }
  /// The parts of a [rows][columns] matrix that belong to the heads of a sequence.
  template <class E>
  Matrix<E> heads(E* matrix, std::size_t columns, std::size_t first, std::size_t sequence,
                  std::size_t length) const {
    return {matrix + sequence * length * columns + first, columns, depth()};
  }

  void attend(Workspace<T>& scratch, Values const& x, Saved& saved) {
    std::size_t const length = x.extent(1);
    std::size_t const deep = depth();
    std::size_t const square = length * length;
    saved.share.resize({x.extent(0), heads_, length, length});
    saved.middle.resize({x.extent(0) * length, middle_});
    T const* const qkv = saved.first.data();
    for (std::size_t i = 0; i < x.extent(0); ++i)
      scratch.product(heads(qkv, 3 * middle_, 0, i, length),
                      heads(qkv, 3 * middle_, middle_, i, length).transposed(),
                      Matrix<T>{saved.share.data() + i * heads_ * square, length, square}, length,
                      length, deep, depth_scale(), 0, heads_);
    Kernels<T>::causal_softmax(saved.share.data(), x.extent(0) * heads_ * length, length);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      scratch.product(Matrix<T const>{saved.share.data() + i * heads_ * square, length, square},
                      heads(qkv, 3 * middle_, 2 * middle_, i, length),
                      heads(saved.middle.data(), middle_, 0, i, length), length, deep, length, 1, 0,
                      heads_);
  }

  void attend_backward(Workspace<T>& scratch, Values const& x, T const* dmixed, Saved& saved) {
    std::size_t const length = x.extent(1);
    std::size_t const deep = depth();
    std::size_t const square = length * length;
    scratch.shares.resize_like(saved.share);
    saved.dfirst.resize_like(saved.first);
    T const* const qkv = saved.first.data();
    T* const dqkv = saved.dfirst.data();
    auto const share = [&](T* shares, std::size_t i) {
      return Matrix<T>{shares + i * heads_ * square, length, square};
    };
    auto const read = [](Matrix<T> m) { return Matrix<T const>{m.data, m.columns, m.stride}; };
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      auto const dm = heads(dmixed, middle_, 0, i, length);
      scratch.product(dm, heads(qkv, 3 * middle_, 2 * middle_, i, length).transposed(),
                      share(scratch.shares.data(), i), length, length, deep, 1, 0, heads_);
      scratch.product(read(share(saved.share.data(), i)).transposed(), dm,
                      heads(dqkv, 3 * middle_, 2 * middle_, i, length), length, deep, length, 1, 0,
                      heads_);
    }
    Kernels<T>::softmax_backward(saved.share.data(), scratch.shares.data(),
                                 x.extent(0) * heads_ * length, length, depth_scale());
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      auto const ds = read(share(scratch.shares.data(), i));
      scratch.product(ds, heads(qkv, 3 * middle_, middle_, i, length),
                      heads(dqkv, 3 * middle_, 0, i, length), length, deep, length, 1, 0, heads_);
      scratch.product(ds.transposed(), heads(qkv, 3 * middle_, 0, i, length),
                      heads(dqkv, 3 * middle_, middle_, i, length), length, deep, length, 1, 0,
                      heads_);
    }
  }
};

}  // namespace detail

/// y = (x, norm(x)), as gpt::NormBeside.
template <class T> class NormBeside : public detail::Declared<gpt::NormBeside<float>> {
 public:
  using Input = stagger::cuda::Tensor<T>;   ///< [sequences][length][width]
  using Output = stagger::cuda::Tensor<T>;  ///< [sequences][length][2 width]
  using Saved = detail::SavedNorm<T>;

  NormBeside(gpt::NormBeside<float> host, std::size_t width,
             std::shared_ptr<Workspaces<T>> workspaces)
      : Declared(std::move(host)), width_(width), workspaces_(std::move(workspaces)) {}

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    saved.resize(rows, width_);
    Kernels<T>::norm(x.data(), this->template value<0>(context), this->template value<1>(context),
                     workspace.normal.data(), saved.normal.data(), saved.scale.data(), rows,
                     width_);
    y.resize({x.extent(0), x.extent(1), 2 * width_});
    detail::copy_columns<T>({y.data(), 2 * width_}, {x.data(), width_}, width_, rows);
    detail::copy_columns<T>({y.data() + width_, 2 * width_}, {workspace.normal.data(), width_},
                            width_, rows);
  }
  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    Workspace<T>& workspace = workspaces_->current();
    std::size_t const rows = x.extent(0) * x.extent(1);
    workspace.normal.resize({rows, width_});
    workspace.narrow.resize({rows, width_});
    detail::copy_columns<T>({workspace.normal.data(), width_}, {dy.data() + width_, 2 * width_},
                            width_, rows);
    detail::copy_columns<T>({workspace.narrow.data(), width_}, {dy.data(), 2 * width_}, width_,
                            rows);
    dx.resize_like(x);
    saved.backward(workspace.normal.data(), workspace.narrow.data(),
                   this->template value<0>(context), dx.data());
  }
  void backward_weight(stagger::Context& context, Input const&, Output const&, Saved& saved) {
    saved.add_gradients(this->template gradient<0>(context), this->template gradient<1>(context));
  }

 private:
  std::size_t width_;
  std::shared_ptr<Workspaces<T>> workspaces_;
};

/// The projections as a layer that members of a group share.
template <class T> class Projections : public detail::Projecting<T, gpt::Projections<float>, 0> {
  using Base = detail::Projecting<T, gpt::Projections<float>, 0>;

 public:
  using Input =
      stagger::cuda::Tensor<T>;  ///< [sequences][length][2 width] residual, and x behind it
  using Output = stagger::cuda::Tensor<T>;  ///< [sequences][length][width]
  using Saved = typename Base::Saved;
  using Base::Base;

  [[nodiscard]] std::size_t inputs() const { return this->layer_.inputs(); }
  [[nodiscard]] std::size_t outputs() const { return this->layer_.outputs(); }
  [[nodiscard]] std::size_t hidden() const { return this->layer_.hidden(); }
  [[nodiscard]] std::size_t operations() const { return this->layer_.operations(); }
  [[nodiscard]] Projections part(int member, int members, stagger::SplitBy by) const {
    std::size_t const mine = stagger::features_of(member, members, hidden()).size();
    Projections own(this->layer_.part(member, members, by), this->width_,
                    this->heads_ != 0 ? mine : 0, mine * (this->middle_ / hidden()),
                    this->workspaces_);
    return own;
  }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) {
    std::size_t const rows = Base::rows_of(x);
    y.resize({x.extent(0), x.extent(1), this->width_});
    if (this->adds_once())
      detail::copy_columns<T>({y.data(), this->width_}, {x.data(), 2 * this->width_}, this->width_,
                              rows);
    this->project(context, x, behind(x), y.data(), y.data(), saved);
  }
  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    dx.resize_like(x);
    if (this->adds_once())
      detail::copy_columns<T>({dx.data(), 2 * this->width_}, {dy.data(), this->width_},
                              this->width_, Base::rows_of(x));
    else
      stagger::cuda::check(
          cudaMemsetAsync(dx.data(), 0, dx.size() * sizeof(T), stagger::cuda::stream()),
          "clear a gradient");
    this->project_backward(context, x, dy.data(), {dx.data() + this->width_, 2 * this->width_},
                           saved);
  }
  void backward_weight(stagger::Context& context, Input const& x, Output const& dy, Saved& saved) {
    this->add_gradients(context, x, behind(x), dy.data(), saved);
  }

 private:
  [[nodiscard]] Matrix<T const> behind(Input const& x) const {
    return {x.data() + this->width_, 2 * this->width_};
  }
};

template <class T> class HalfBlock : public detail::Projecting<T, gpt::HalfBlock<float>, 2> {
  using Base = detail::Projecting<T, gpt::HalfBlock<float>, 2>;

 public:
  using Input = stagger::cuda::Tensor<T>;
  using Output = stagger::cuda::Tensor<T>;

  struct Saved {
    detail::SavedNorm<T> norm;
    typename Base::Saved projections;
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return norm.bytes() + projections.bytes();
    }
  };

  /// @param heads  of attention; 0: an MLP
  HalfBlock(gpt::HalfBlock<float> host, std::size_t width, std::size_t heads,
            std::shared_ptr<Workspaces<T>> workspaces)
      : Base(std::move(host), width, heads, (heads != 0 ? 1 : 4) * width, std::move(workspaces)) {}

  /// As groups take it; their terms are added up in single precision alone.
  [[nodiscard]] std::pair<NormBeside<T>, Projections<T>> divided() const
    requires std::same_as<T, float>
  {
    auto host = this->layer_.divided();
    return {NormBeside<T>(std::move(host.first), this->width_, this->workspaces_),
            Projections<T>(std::move(host.second), this->width_, this->heads_, this->middle_,
                           this->workspaces_)};
  }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) {
    std::size_t const rows = Base::rows_of(x);
    auto& normal = this->workspace().normal;
    normal.resize({rows, this->width_});
    saved.norm.resize(rows, this->width_);
    Kernels<T>::norm(x.data(), this->template value<0>(context), this->template value<1>(context),
                     normal.data(), saved.norm.normal.data(), saved.norm.scale.data(), rows,
                     this->width_);
    y.resize_like(x);
    this->project(context, x, {normal.data(), this->width_}, x.data(), y.data(), saved.projections);
  }

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    auto& narrow = this->workspace().narrow;
    narrow.resize({Base::rows_of(x), this->width_});
    this->project_backward(context, x, dy.data(), {narrow.data(), this->width_}, saved.projections);
    dx.resize_like(x);
    saved.norm.backward(narrow.data(), dy.data(), this->template value<0>(context), dx.data());
  }

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy, Saved& saved) {
    std::size_t const rows = Base::rows_of(x);
    auto& normal = this->workspace().normal;
    normal.resize({rows, this->width_});
    Kernels<T>::norm_output(saved.norm.normal.data(), this->template value<0>(context),
                            this->template value<1>(context), normal.data(), rows, this->width_);
    this->add_gradients(context, x, {normal.data(), this->width_}, dy.data(), saved.projections);
    saved.norm.add_gradients(this->template gradient<0>(context),
                             this->template gradient<1>(context));
  }
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
    this->template add_weight<2>(context, workspace,
                                 Matrix<T const>{workspace.normal.data(), width_}, dy.data(), rows,
                                 logits);
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

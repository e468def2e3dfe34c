// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What several tests on a GPU use: stages of one kernel, and their inputs.

#include <cstddef>
#include <tuple>
#include <vector>

#include <stagger/core/index_range.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/split.hpp>
#include <stagger/model/stage.hpp>

#include "kernels.hpp"

struct AddOne {
  using Input = stagger::cuda::Tensor<>;
  using Output = stagger::cuda::Tensor<>;
  void forward(stagger::Context&, Input const& x, Output& y, stagger::NothingSaved&) {
    y.resize_like(x);
    gpu_kernels::add_one(x.data(), y.data(), x.size(), stagger::cuda::stream());
  }
  void backward_input(stagger::Context&, Input const&, Output const&, Input&,
                      stagger::NothingSaved&) {}
};

/// Keeps its stream busy until the host sets `open`.
struct Spin {
  using Input = stagger::cuda::Tensor<>;
  using Output = stagger::cuda::Tensor<>;
  int const* open;
  void forward(stagger::Context&, Input const& x, Output& y, stagger::NothingSaved&) {
    y.resize_like(x);
    gpu_kernels::spin(open, stagger::cuda::stream());
  }
  void backward_input(stagger::Context&, Input const&, Output const&, Input&,
                      stagger::NothingSaved&) {}
};

/// y = x + bias, which members of a group can share.
struct AddBias {
  using Input = stagger::cuda::Tensor<>;
  using Output = stagger::cuda::Tensor<>;
  using Nothing = stagger::NothingSaved;
  static constexpr bool by_inputs = true;
  std::size_t width;
  bool splits;
  stagger::Parameter<> bias;  // of its own columns
  stagger::IndexRange own{};  // those of the whole
  stagger::SplitBy by = stagger::SplitBy::nothing;

  explicit AddBias(std::size_t columns, bool can_split = true)
      : width(columns),
        splits(can_split),
        bias("bias", std::vector<float>(columns)),
        own{0, columns} {}
  auto parameters() { return std::tie(bias); }
  [[nodiscard]] std::size_t inputs() const { return splits ? width : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? width : 0; }
  [[nodiscard]] AddBias part(int member, int members, stagger::SplitBy how) const {
    AddBias part = *this;
    part.own = stagger::features_of(member, members, width);
    part.bias = bias.piece({.first = part.own.first, .length = part.own.size()});
    part.by = how;
    return part;
  }
  void forward(stagger::Context& context, Input const& x, Output& y, Nothing&) const {
    pass(x, y, by == stagger::SplitBy::inputs);
    stagger::cuda::AddedBlock block;
    block.sum = y.data() + (y.columns() == width ? own.first : 0);
    block.more = context[bias].data();  // a stride of 0: each row adds the same
    block.sum_stride = y.columns();
    block.rows = y.rows();
    block.columns = own.size();
    stagger::cuda::check(stagger::cuda::parameter_kernels.add_block(stagger::ElementType::f32,
                                                                    block, stagger::cuda::stream()),
                         "add a bias");
  }
  void backward_input(stagger::Context&, Input const&, Output const& dy, Input& dx,
                      Nothing&) const {
    pass(dy, dx, by == stagger::SplitBy::outputs);
  }
  void backward_weight(stagger::Context& context, Input const&, Output const& dy, Nothing&) const {
    std::size_t const first = dy.columns() == width ? own.first : 0;
    for (std::size_t r = 0; r < dy.rows(); ++r)
      stagger::cuda::check(
          stagger::cuda::parameter_kernels.add(
              stagger::ElementType::f32, context.gradient(bias).data(),
              dy.data() + r * dy.columns() + first, own.size(), stagger::cuda::stream()),
          "add a row");
  }

 private:
  /// Its columns of `from`. @param terms  among zeros
  void pass(Input const& from, Output& to, bool terms) const {
    stagger::Block const size{from.rows(), own.size()};
    to.resize({size.rows, terms ? width : own.size()});
    if (terms)
      stagger::cuda::check(
          cudaMemsetAsync(to.data(), 0, to.size() * sizeof(float), stagger::cuda::stream()),
          "clear a value");
    to.copy_block({0, terms ? own.first : 0}, from, {0, from.columns() == width ? own.first : 0},
                  size);
  }
};

/// Half the square of the output. Its value is not asked for.
struct HalfSquare {
  using policy_tag = stagger::LossTag;
  using Target = stagger::cuda::Tensor<>;
  double terms(Target const&) const { return 1; }
  double value(stagger::Context&, Target const&, Target const&) const { return 0; }
  double value_and_gradient(stagger::Context&, Target const& y, Target const&, double,
                            Target& dy) const {
    dy = y;
    return 0;
  }
};

/// Tensors of ones on the first GPU.
inline std::vector<stagger::cuda::Tensor<>> inputs(std::size_t count, std::size_t size) {
  stagger::cuda::select_device(0);
  std::vector<float> const ones(size, 1.0F);
  std::vector<stagger::cuda::Tensor<>> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back(std::initializer_list<std::size_t>{size});
    all.back().upload(ones);
  }
  stagger::cuda::check(cudaStreamSynchronize(nullptr), "upload");
  return all;
}

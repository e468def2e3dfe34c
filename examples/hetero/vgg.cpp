// SPDX-License-Identifier: Apache-2.0
// The network of examples/vgg on its textures.

#include "vgg/images.hpp"
#include "vgg/model/model.hpp"
#include "workers.hpp"

namespace hetero {

namespace {

struct VggWorkload {
  using Batch = vgg::Batch;
  using Loss = sg::loss::CrossEntropy<float>;
  static constexpr char const* unit = "images";
  static constexpr double rate = 0.03;

  explicit VggWorkload(Settings const& s)
      : seed(static_cast<std::uint64_t>(s.seed)),
        minibatch{static_cast<std::size_t>(s.batch), 1},
        data(vgg::make_textures(seed, 4000, 500)) {}

  [[nodiscard]] static vgg::ModelShape shape() { return {.dropout = 0}; }
  [[nodiscard]] auto model() const { return vgg::make_model<float>(shape(), seed); }
  [[nodiscard]] static std::vector<double> work() { return vgg::work_of(shape()); }

  void draw(std::int64_t number, Batch& batch) const {
    data.training.draw(seed, number, minibatch, batch);
  }
  [[nodiscard]] Batch held_out() const {
    Batch batch;
    data.held_out.take(0, {data.held_out.size(), 10}, batch);
    return batch;
  }

  std::uint64_t seed;
  vgg::Minibatch minibatch;
  vgg::DataSet data;
};

}  // namespace

Run run_vgg(Settings const& s, bool progress) { return Workers<VggWorkload>(s, progress)(); }

}  // namespace hetero

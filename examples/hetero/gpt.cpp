// SPDX-License-Identifier: Apache-2.0
// The transformer of examples/gpt on the sources of this project.

#include "gpt/model/model.hpp"
#include "gpt/text.hpp"
#include "workers.hpp"

namespace hetero {

namespace {

struct GptWorkload {
  using Batch = gpt::Batch;
  using Loss = gpt::CrossEntropy<float>;
  static constexpr char const* unit = "bytes";
  static constexpr double rate = 0.3;
  static constexpr gpt::ModelShape shape{.layers = 4, .width = 32, .heads = 2, .context = 32};

  explicit GptWorkload(Settings const& s)
      : seed(static_cast<std::uint64_t>(s.seed)),
        sequences(static_cast<std::size_t>(s.batch)),
        text(gpt::Text::read(gpt::own_files(HETERO_SOURCES)),
             static_cast<std::size_t>(shape.context)) {}

  [[nodiscard]] auto model() const { return gpt::make_model<float>(shape, seed); }
  [[nodiscard]] static std::vector<double> work() { return gpt::work_of(shape); }

  void draw(std::int64_t number, Batch& batch) const {
    batch.inputs.resize(1);
    text.draw(seed, number, sequences, batch);
  }
  [[nodiscard]] Batch held_out() const {
    Batch batch;
    batch.inputs.resize(8);
    text.held_out(256, batch);
    return batch;
  }

  std::uint64_t seed;
  std::size_t sequences;
  gpt::Text text;
};

}  // namespace

Run run_gpt(Settings const& s, bool progress) { return Workers<GptWorkload>(s, progress)(); }

}  // namespace hetero

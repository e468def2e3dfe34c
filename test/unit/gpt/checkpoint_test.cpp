// SPDX-License-Identifier: Apache-2.0
#include "run_config.hpp"

#include <string>

#include <stagger/stagger.hpp>
#include <stagger/train/checkpoint.hpp>

#include "catch.hpp"
#include "temporary_folder.hpp"

namespace checkpoint_test {

namespace sg = stagger;

TEST_CASE("gpt/checkpoint: one of a chain with whole blocks is refused by the model's name",
          "[gpt]") {
  gpt::Settings settings;
  settings.layers = 2;
  settings.width = 16;
  settings.heads = 2;
  settings.context = 12;
  auto one = sg::Pipeline{gpt::make_model<float>(gpt::shape_of(settings), 1)}.on_one_device(
      sg::optimizer::AdamW{}, gpt::CrossEntropy<float>{});
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder / "old");
  // As it was written when attention and MLP were one layer, with numbers that would fit.
  std::string const old = "gpt, layers 2, width 16, heads 2, context 12";
  checkpoints.write({3, 1, old, ""}, one.parameters());
  CHECK_THROWS_WITH(
      static_cast<void>(checkpoints.restore(gpt::describe_model(settings), one.parameters())),
      Catch::Contains("belongs to another model: it is of '" + old +
                      "', this is 'gpt, half blocks 4, width 16, heads 2, context 12'; use the "
                      "settings it was written with, or another folder"));
  CHECK(checkpoints.restore(old, one.parameters()).state.step == 3);
}

}  // namespace checkpoint_test

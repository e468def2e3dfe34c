// SPDX-License-Identifier: Apache-2.0
// Training whose layers groups of ranks share: what is saved of it, what members agree on.
#include <stagger/train/checkpoint.hpp>

#include "catch.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/bucket.hpp>
#include <stagger/collective/grouping/greedy.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/report/split_plan.hpp>
#include <stagger/train/describe.hpp>

#include "../temporary_folder.hpp"
#include "engine/split_model.hpp"

namespace shared_layers_test {

using namespace split_model;

namespace {

std::vector<char> file_of(sg::Checkpoints const& checkpoints, std::int64_t step) {
  std::ifstream file(checkpoints.path(step), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

sg::CheckpointState at(std::int64_t step) { return {step, 7, "five linear layers", ""}; }

/// One with AdamW, which keeps two states of each parameter.
template <class Device> auto adam_pipeline(Device device, Case const& of) {
  sg::Options options = of.options;
  options.seed = 7;
  std::vector<int> counts = of.counts;
  if (counts.empty()) counts.assign(of.cuts.size() + 1, of.members * of.groups);
  options.replicas = sg::Replicas::even(counts.data(), counts.size());
  return sg::Pipeline{model<double>(of.pattern)}.with(
      sg::partition::LayerSplit<>{of.members, {of.cuts}, of.threshold, of.pairs}, of.schedule,
      sg::loss::MeanSquaredError<double>{}, sg::optimizer::AdamW{.rate = 0.01}, std::move(device),
      options);
}

template <class Train> void train_for(Train& train, int from, int to) {
  for (int step = from; step < to; ++step) sg::run(train.step(batch<double>(step, 2, 17)));
}

}  // namespace

TEST_CASE("train/groups: a checkpoint of one group size is read with any other, states included",
          "[train]") {
  Case const two{.members = 2, .groups = 2};
  Case const none{.members = 1, .groups = 3};
  std::vector<Case> const others{{.members = 4},
                                 {.members = 3, .groups = 2, .pairs = true},
                                 none,
                                 {.pattern = 6, .members = 2, .cuts = {3}, .counts = {3, 2}}};
  auto written = adam_pipeline(sg::host::Threads{1}, two);
  train_for(written, 0, 3);
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  checkpoints.write(at(3), written);
  auto const file = file_of(checkpoints, 3);
  train_for(written, 3, 5);
  for (Case const& of : others) {
    CAPTURE(of.members, of.groups, of.pairs);
    auto read = adam_pipeline(sg::host::Threads{2}, of);
    train_for(read, 7, 8);  // something else
    auto const found = checkpoints.restore("five linear layers", read);
    CHECK(found.state.step == 3);
    CHECK(found.warnings.empty());
    CHECK(read.steps() == 3);
    TemporaryFolder const again;
    sg::Checkpoints const copy(again.path());
    copy.write(at(3), read);
    CHECK(file_of(copy, 3) == file);
    train_for(read, 3, 5);
    CHECK(difference<double>(read, written) < 1e-11);
  }
}

TEST_CASE("train/groups: a checkpoint read by the same groups goes on with the same bits",
          "[train]") {
  Case const of{.members = 3, .groups = 2, .pairs = true};
  auto written = adam_pipeline(sg::host::Threads{1}, of);
  train_for(written, 0, 2);
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  checkpoints.write(at(2), written);
  auto read = adam_pipeline(sg::host::Threads{2}, of);
  static_cast<void>(checkpoints.restore("five linear layers", read));
  for (int step = 2; step < 5; ++step) {
    train_for(written, step, step + 1);
    train_for(read, step, step + 1);
    CHECK(bits(read) == bits(written));
  }
}

TEST_CASE("train/groups: a checkpoint that is damaged or of another model changes nothing",
          "[train]") {
  Case const of{.members = 2};
  auto train = adam_pipeline(sg::host::Threads{1}, of);
  train_for(train, 0, 1);
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  checkpoints.write(at(1), train);
  train_for(train, 1, 2);
  auto const before = bits(train);
  auto const refused = [&](auto& by) -> std::string {
    try {
      static_cast<void>(checkpoints.restore("five linear layers", by));
    } catch (sg::Error const& error) {
      return error.what();
    }
    return "";
  };
  auto narrow =
      sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1, false}, Linear<double>{7, 10, 2}}}
          .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                sg::loss::MeanSquaredError<double>{}, sg::optimizer::AdamW{},
                sg::Options{.replicas = {2}});
  CHECK(refused(narrow).find("it has 10 parameters, this model has 4") != std::string::npos);
  auto other = sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1, false},
                                           Linear<double>{7, 13, 2}, Squash<double>{},
                                           Linear<double>{13, 9, 3}, Linear<double>{9, 11, 4},
                                           Squash<double>{}, Linear<double>{11, outputs, 5}}}
                   .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                         sg::loss::MeanSquaredError<double>{}, sg::optimizer::AdamW{},
                         sg::Options{.replicas = {2}});
  auto const untouched = bits(other);
  CHECK(refused(other).find("parameter '1.weight' has 672 bytes there, here 728") !=
        std::string::npos);
  CHECK(bits(other) == untouched);

  auto file = file_of(checkpoints, 1);
  for (std::size_t const place : {file.size() / 3, file.size() - 100}) {
    auto damaged = file;
    damaged[place] = static_cast<char>(damaged[place] ^ 4);
    std::ofstream(checkpoints.path(1), std::ios::binary)
        .write(damaged.data(), static_cast<std::streamsize>(damaged.size()));
    CHECK(refused(train).find(checkpoints.path(1)) != std::string::npos);
    CHECK(bits(train) == before);
  }
  file.resize(file.size() / 2);
  std::ofstream(checkpoints.path(1), std::ios::binary | std::ios::trunc)
      .write(file.data(), static_cast<std::streamsize>(file.size()));
  CHECK(refused(train).find(checkpoints.path(1)) != std::string::npos);
  CHECK(bits(train) == before);
}

namespace {

/// @return bits of parameters after some steps with a grouping, and how many sums there were
template <class Collective>
std::pair<std::vector<std::byte>, std::size_t> grouped_bits(Collective collective, Case const& of) {
  sg::Options options = of.options;
  options.seed = 7;
  options.record = true;
  options.replicas = sg::Replicas::even(of.counts.data(), of.counts.size());
  auto train = sg::Pipeline{model<double>(of.pattern)}.with(
      sg::partition::LayerSplit<>{of.members, {of.cuts}, 0, of.pairs}, of.schedule,
      sg::loss::MeanSquaredError<double>{}, optimizer(), std::move(collective),
      sg::host::Threads{2}, options);
  for (int step = 0; step < 5; ++step) sg::run(train.step(batch<double>(step, 3, 17)));
  return {bits(train), train.reductions().spans.size()};
}

}  // namespace

TEST_CASE("train/groups: every grouping of gradients has the same bits, with clipping", "[train]") {
  namespace grouping = sg::collective::grouping;
  using sg::collective::AllReduce;
  for (bool const clips : {false, true})
    for (auto const& counts : {std::vector<int>{4}, std::vector<int>{4, 6}}) {
      Case of{.pattern = clips ? 15U : 8U, .members = 2, .counts = counts};
      of.pairs = clips;
      if (counts.size() > 1) of.cuts = {4};
      if (clips) of.options.clip_norm = 0.05;
      CAPTURE(clips, counts);
      auto const [whole, fewest] = grouped_bits(AllReduce<grouping::Single>{}, of);
      auto const [each, most] = grouped_bits(AllReduce<grouping::Layerwise>{}, of);
      CHECK(fewest < most);
      CHECK(each == whole);
      CHECK(grouped_bits(AllReduce<grouping::Single>{.shard_optimizer = true}, of).first == whole);
      CHECK(grouped_bits(AllReduce<grouping::Bucket>{grouping::Bucket{300}}, of).first == whole);
      CHECK(grouped_bits(AllReduce<grouping::Greedy>{.measured_steps = 1}, of).first == whole);
      CHECK(grouped_bits(AllReduce<>{.measured_steps = 1, .renew_every = 2}, of).first == whole);
    }
}

namespace {

/// Passes its input on, and notes which features of which rows it keeps: it drops by row and feature
/// of the whole.
struct Dropping {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr bool element_wise = true;
  using Masks = std::map<std::tuple<int, std::size_t, std::size_t>, bool>;
  Masks* masks;  // by microbatch, row and feature
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::size_t const row = context.first_row() + i / x.extent(1);
      std::size_t const feature = context.first_column() + i % x.extent(1);
      bool const kept = sg::random_bits(context.random_seed(), {row, feature}) % 3 != 0;
      auto const known = masks->emplace(std::tuple{context.microbatch(), row, feature}, kept);
      CHECK(known.first->second == kept);
      y[i] = kept ? x[i] : 0;
    }
  }
  void backward_input(sg::Context&, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx = dy;
  }
};

}  // namespace

TEST_CASE("train/groups: dropout drops the same features of the same rows, split and unsplit",
          "[train]") {
  auto const masks_of = [](int members, int groups) {
    std::vector<Dropping::Masks> masks(3);
    auto train =
        sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1, false}, Dropping{&masks[0]},
                                    Linear<double>{7, 12, 2}, Dropping{&masks[1]},
                                    Linear<double>{12, 10, 3, false}, Dropping{&masks[2]}}}
            .with(sg::partition::LayerSplit{.group = members, .threshold = 0},
                  sg::loss::MeanSquaredError<double>{}, sg::host::Threads{1},
                  sg::Options{.seed = 5, .replicas = replicas(1, members * groups)});
    sg::run(train.step(batch<double>(0, 2, 12)));
    return masks;
  };
  auto const whole = masks_of(1, 1);
  CHECK(whole[1].size() == (12 + 13) * 12);  // rows of both microbatches, features
  for (auto const& [members, groups] :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {4, 1}, {2, 3}})
    CHECK(masks_of(members, groups) == whole);
}

namespace {

/// Notes every output that it is asked about, with its gradient.
struct Watching {
  using policy_tag = sg::LossTag;
  using Target = Matrix<double>;
  std::map<std::vector<double>, int>* seen;  // output, target and loss; how often
  sg::loss::MeanSquaredError<double> loss{};
  double terms(Target const& target) const { return loss.terms(target); }
  double value(sg::Context& context, Matrix<double> const& y, Target const& target) const {
    return loss.value(context, y, target);
  }
  double value_and_gradient(sg::Context& context, Matrix<double> const& y, Target const& target,
                            double scale, Matrix<double>& dy) const {
    double const made = loss.value_and_gradient(context, y, target, scale, dy);
    std::vector<double> all(y.data(), y.data() + y.size());
    all.insert(all.end(), target.data(), target.data() + target.size());
    all.push_back(made);
    ++(*seen)[all];
    return made;
  }
};

}  // namespace

TEST_CASE("train/groups: all members of a group see the same logits and the same loss", "[train]") {
  for (unsigned const pattern : {15U, 7U, 5U, 8U})
    for (int const members : {2, 3, 4})
      for (bool const pairs : {false, true}) {
        std::map<std::vector<double>, int> seen;
        auto train = sg::Pipeline{model<double>(pattern)}.with(
            sg::partition::LayerSplit<>{members, {}, 0, pairs}, Watching{&seen},
            sg::host::Threads{1}, sg::Options{.seed = 3, .replicas = replicas(1, 2 * members)});
        sg::run(train.step(batch<double>(0, 3, 17)));
        CAPTURE(pattern, members, pairs);
        CHECK(seen.size() == 2 * 3);  // of each group and microbatch
        for (auto const& [what, times] : seen) CHECK(times == members);
      }
}

TEST_CASE(
    "train/groups: copies of what is not split have the same bits before and behind each step",
    "[train]") {
  for (unsigned const pattern : {1U, 5U, 2U})
    for (int const members : {2, 4}) {
      Case of{.pattern = pattern, .members = members, .groups = 2};
      of.options.clip_norm = 0.05;
      auto train = adam_pipeline(sg::host::Threads{2}, of);
      CAPTURE(pattern, members);
      std::size_t compared = 0;
      for (int step = 0; step < 4; ++step) {
        auto const& state = train.machine().model;
        std::map<int, std::size_t> first;  // of the model's layers
        for (std::size_t l = 0; l < state.layers.size(); ++l) {
          auto const& entry = state.grouped->layers[l];
          if (entry.split) continue;
          auto const [known, fresh] = first.emplace(entry.number, l);
          if (fresh) continue;
          auto const one = state.parameters[known->second].blocks();
          auto const copy = state.parameters[l].blocks();
          for (std::size_t b = 0; b < one.size(); ++b) {
            REQUIRE(one[b].size() == copy[b].size());
            CHECK(
                (one[b].empty() || std::memcmp(one[b].data(), copy[b].data(), one[b].size()) == 0));
            compared += one[b].size();
          }
        }
        train_for(train, step, step + 1);
      }
      CHECK(compared > 0);
    }
}

TEST_CASE("train/describe: what each member has and exchanges, before the first step", "[train]") {
  for (unsigned pattern = 0; pattern < 16; ++pattern)
    for (int const members : {1, 2, 3, 8})
      for (bool const pairs : {false, true}) {
        Case const of{.pattern = pattern, .members = members, .pairs = pairs};
        auto train = pipeline<double>(sg::host::Threads{1}, of);
        auto const chain = sg::describe(train);
        CAPTURE(pattern, members, pairs);
        REQUIRE(chain.layers.size() == 7);
        CHECK(chain.plan.members == members);
        CHECK(chain.plan.splits() == (pattern != 0 && members != 1));
        auto const& model = train.machine().model;
        for (int m = 0; m < members; ++m) {
          std::size_t here = 0;  // in what the engine has made for this member
          for (std::size_t l = 0; l < 7; ++l) {
            std::size_t at = l;
            if (model.grouped != nullptr)
              at = model.grouped->wholes[l].of(model.grouped->wholes[l].members == 1 ? 0 : m);
            for (std::size_t p = 0; p < model.parameters[at].count(); ++p)
              here += model.parameters[at].declaration(p).size;
          }
          CHECK(sg::partition::parameters_of(chain.plan, chain.layers, m) == here);
        }
      }
}

TEST_CASE("train/describe: an input run forward gives every activation in bytes", "[train]") {
  // Numbers of a row of each layer's output.
  std::size_t const values[] = {7, 12, 12, 9, 11, 11, 10};
  for (unsigned pattern = 0; pattern < 16; ++pattern)
    for (int const members : {1, 2, 3})
      for (std::size_t const rows : {3U, 7U}) {
        auto train =
            pipeline<double>(sg::host::Threads{1}, {.pattern = pattern, .members = members});
        auto const minibatch = batch<double>(0, 1, rows);
        auto const chain = sg::describe(train, minibatch.inputs[0]);
        CAPTURE(pattern, members, rows);
        REQUIRE(chain.layers.size() == std::size(values));
        for (std::size_t l = 0; l < std::size(values); ++l) {
          CHECK(chain.layers[l].row_bytes == values[l] * sizeof(double));
          std::size_t all = 0;
          for (int m = 0; m < members; ++m)
            all += sg::partition::activation_bytes_of(chain.plan, chain.layers, l, m, 5);
          // Members that have all rows of their group have them all, unless each has some columns.
          bool const again = chain.plan.layers[l].gives == sg::partition::Held::whole;
          auto const ranks = static_cast<std::size_t>(members);
          CHECK(all == values[l] * sizeof(double) * 5 * ranks * (again ? ranks : 1));
        }
        CHECK(train.steps() == 0);
      }

  auto train = pipeline<double>(sg::host::Threads{1}, {.pattern = 9, .members = 2});
  auto const chain = sg::describe(train, batch<double>(0, 1, 4).inputs[0]);
  auto const table = sg::report::table(chain, 1, 5);
  CHECK(table.find("activation bytes\n") != std::string::npos);
  CHECK(table.find(" 400\nloss") != std::string::npos);  // 10 rows, 5 of 10 features, 8 bytes
  CHECK(table.find("describe(train, input)") == std::string::npos);
  CHECK(sg::report::svg(chain, 5).find("bytes of activations") != std::string::npos);
}

TEST_CASE("train/describe: as a table and as a picture, also if no layer is shared", "[train]") {
  auto train = pipeline<double>(sg::host::Threads{1}, {.pattern = 9, .members = 2});
  CHECK(sg::report::table(sg::describe(train), 1, 5) ==
        "layer  exchange  forward: sent  received  backward: sent  received  features  split by  "
        "operations/element  parameters  activations\n"
        "-----  --------  -------------  --------  --------------  --------  --------  --------  "
        "------------------  ----------  -----------\n"
        "0                            -         -               -         -         -  -         "
        "                 -          49            -\n"
        "1      modulo               35        35              35        35   7 -> 12  outputs   "
        "              13.3          48           60\n"
        "2                            -         -               -         -        12  -         "
        "                 -           -           60\n"
        "3      collect              60        60               -         -         -  -         "
        "                 -         117            -\n"
        "4                            -         -               -         -         -  -         "
        "                 -         110            -\n"
        "5                            -         -               -         -         -  -         "
        "                 -           -            -\n"
        "6      fan                   -         -             110       110  11 -> 10  outputs   "
        "              15.7          60           50\n"
        "loss   collect              50        50               -         -\n"
        "activations of these layers are known only when they run, since they have no outputs(): "
        "0, 3, 4, 5; describe(train, input) runs them\n");
  CHECK(sg::report::svg(sg::describe(train), 5).find("member 1 of 2") != std::string::npos);

  auto narrow = pipeline<double>(sg::host::Threads{1}, {.pattern = 2, .members = 10});
  auto const said = sg::report::table(sg::describe(narrow), 0, 5);
  CHECK(said.find(
            "\nlayer 3 stays whole: it has 9 outputs for 10 members\n"
            "no layer is worth sharing: each rank has the whole model, for rows of its own\n") !=
        std::string::npos);
  auto plain = sg::Pipeline{model<double>(15)}.with(sg::loss::MeanSquaredError<double>{});
  CHECK(sg::report::table(sg::describe(plain), 0, 5).find("sharing") == std::string::npos);
}

}  // namespace shared_layers_test

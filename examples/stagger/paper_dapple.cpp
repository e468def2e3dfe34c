// SPDX-License-Identifier: Apache-2.0
#include "papers.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/profile.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "dapple_models.hpp"
#include "planners.hpp"

namespace tool {

namespace {

namespace plan = stagger::plan;
namespace report = stagger::report;
using stagger::cluster::Profile;

/// A row of table V, for one configuration.
struct Published {
  char configuration;
  char const* plan;
  char const* split;  // layers of each stage
  double acr;         // ratio of transfers to compute; negative: not stated
};

struct Model {
  Profile profile;
  char const* file;  // name of the measured profile
  int batch;
  double memory_factor;  // for the optimizer that the paper trains it with
  double kept_gb;        // kept for backward, so that memory is as published; 0: not stated
  Published lines[3];
};

std::vector<Model> models() {
  double const adam = plan::memory_factor::adam, sgd = plan::memory_factor::sgd;
  return {
      {dapple_models::resnet50(),
       "pipedream-resnet50-blocks",
       2048,
       sgd,
       0,
       {{'A', "DP", "-", -1}, {'B', "DP", "-", -1}, {'C', "DP", "-", -1}}},
      {dapple_models::vgg19(),
       "dapple-vgg-19-pbs-32",
       2048,
       sgd,
       3.4,
       {{'A', "DP", "-", -1}, {'B', "DP", "-", -1}, {'C', "15:1", "13:6", 0.40}}},
      {dapple_models::gnmt(),
       "dapple-gnmt-16-pbs-64-simplified",
       1024,
       sgd,
       0,
       {{'A', "8:8", "9:7", 0.10}, {'B', "8:8", "9:7", 0.10}, {'C', "straight", "-", 3.75}}},
      {dapple_models::bert(),
       "dapple-bert-48-pbs-2",
       64,
       adam,
       1.2,
       {{'A', "8:8", "23:25", 0.06}, {'B', "straight", "-", 0.50}, {'C', "straight", "-", 1.25}}},
      {dapple_models::xlnet(),
       "dapple-xlnet-36-pbs-1",
       128,
       adam,
       4,
       {{'A', "8:8", "18:18", 0.03}, {'B', "8:8", "18:18", 0.03}, {'C', "straight", "-", 0.67}}},
      {dapple_models::amoeba(),
       "dapple-amoeba-36-pbs-1",
       128,
       sgd,
       5,
       {{'A', "8:8", "24:12", 0.18}, {'B', "11:5", "27:9", 0.14}, {'C', "11:5", "27:9", 0.35}}},
  };
}

stagger::cluster::Cluster cluster(char configuration) {
  if (configuration == 'A') return stagger::cluster::dapple_a(2, 8);
  return configuration == 'B' ? stagger::cluster::dapple_b(16) : stagger::cluster::dapple_c(16);
}

std::string shape(plan::Plan const& p) {
  if (p.stages.size() == 1) return "DP";
  bool straight = true;
  std::string text;
  for (auto const& s : p.stages) {
    straight = straight && s.replicas() == 1;
    text += stagger::text(text.empty() ? "" : ":", s.replicas());
  }
  return straight ? "straight" : text;
}

std::string split(plan::Plan const& p) {
  if (p.stages.size() == 1 || p.stages.size() > 8) return "-";
  std::string text;
  for (auto const& s : p.stages) {
    text += stagger::text(text.empty() ? "" : ":", s.last - s.first + 1);
  }
  return text;
}

/// The better of the planner's plan and of data parallelism with a single microbatch, in which the
/// all-reduce of gradients overlaps most.
plan::Plan chosen(Profile const& profile, Model const& model, char configuration) {
  auto const on = cluster(configuration);
  plan::Request request{.batch = model.batch, .memory_factor = model.memory_factor};
  plan::Plan best = made(plan::Dapple{}, {profile, on, request});
  request.microbatch = std::max(1, model.batch / on.size());
  try {
    plan::Plan const whole = made(plan::DataParallel{}, {profile, on, request});
    if (whole.latency_s < best.latency_s) best = whole;
  } catch (plan::Infeasible const&) {  // does not fit
  }
  return best;
}

}  // namespace

std::string paper_dapple(std::string const& profiles, bool json) {
  auto list = nlohmann::ordered_json::array();
  report::TextTable table({"model", "samples", "on", "published", "layers", "ACR", "here", "layers",
                           "ACR", "speed-up", "straight", "by simulation", "speed-up"});
  for (Model const& model : models()) {
    Profile profile = model.profile;
    if (!profiles.empty()) {
      std::string const path = profiles + "/" + model.file + ".json";
      profile = stagger::json::read_profile(stagger::json::read_file(path), path);
      if (model.kept_gb > 0) dapple_models::keep(profile, model.kept_gb);
    }
    for (Published const& line : model.lines) {
      plan::Workload const work(profile, cluster(line.configuration),
                                {.batch = model.batch, .memory_factor = model.memory_factor});
      plan::Plan const ours = chosen(profile, model, line.configuration);
      plan::Plan const simulated = made(plan::Auto{.budget = 150'000, .simulations = 2'000}, work);
      double straight = 0;
      try {
        straight = made(plan::Straight{}, work).speedup;
      } catch (plan::Infeasible const&) {  // fewer layers than devices, or not enough memory
      }
      double const faster = work.one_device_s() / simulated.simulated_s;
      auto const number = [](double value, bool there, int digits) {
        return there ? report::format_fixed(value, digits) : std::string("-");
      };
      table.add({model.profile.name, std::to_string(model.batch),
                 std::string(1, line.configuration), line.plan, line.split,
                 number(line.acr, line.acr >= 0, 2), shape(ours), split(ours),
                 number(ours.acr, ours.stages.size() > 1, 2), number(ours.speedup, true, 2),
                 number(straight, straight > 0, 2), shape(simulated), number(faster, true, 2)});
      auto const optional = [](double value, bool there) {
        return there ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
      };
      list.push_back(
          {{"model", model.profile.name},
           {"batch", model.batch},
           {"configuration", std::string(1, line.configuration)},
           {"published",
            {{"plan", line.plan},
             {"layers", line.split},
             {"acr", optional(line.acr, line.acr >= 0)}}},
           {"here",
            {{"plan", shape(ours)},
             {"layers", split(ours)},
             {"acr", optional(ours.acr, ours.stages.size() > 1)},
             {"speedup", ours.speedup},
             {"straight_speedup", optional(straight, straight > 0)}}},
           {"by_simulation",
            {{"plan", shape(simulated)}, {"layers", split(simulated)}, {"speedup", faster}}}});
    }
  }
  if (json) return list.dump(2) + "\n";
  std::string text = table.str();
  text +=
      "\nTable V on 16 V100s: A two servers of eight, 25 GbE; B one in each server, 25 GbE; C the\n"
      "same, 10 GbE. \"here\": the planner's corrected estimate, or data parallelism in one\n"
      "microbatch where that is better; speed-ups over one device. \"by simulation\": the planner\n"
      "that ranks simulated iterations, over sizes of microbatches as well.\n";
  text += profiles.empty()
              ? "Layers from stated figures; for measured profiles name their folder with "
                "--profiles or\nSTAGGER_PROFILES.\n"
              : "Layers as measured by the authors (ResNet-50: by PipeDream's).\n";
  return text;
}

}  // namespace tool

// SPDX-License-Identifier: Apache-2.0
#include "planning.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/json/plan.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/predict.hpp>
#include <stagger/report/format.hpp>

namespace gpt {

namespace sg = stagger;
namespace plan = stagger::plan;

namespace {

/// Sequences of a microbatch that each replica of a stage processes.
int slice_of(plan::Plan const& p, plan::PlanStage const& stage, std::int64_t batch) {
  double const microbatch = static_cast<double>(batch) / p.microbatches;
  return static_cast<int>(std::ceil(microbatch / stage.replicas() - 1e-9));
}

class Planning {
 public:
  Planning(Settings const& s, LayerTimer& layers)
      : s_(s), layers_(layers), cluster_(layers.cluster()), updates_(layers.updates()) {}

  /// The plan with the shortest predicted step.
  /// @throws sg::Error  bad_configuration if no plan fits
  [[nodiscard]] plan::Plan best() {
    std::optional<plan::Plan> best;
    double best_s = 0;
    std::string why;
    for (int const size : sizes()) {
      auto const profile = layers_.profile(size, 0.1);
      for (int used = static_cast<int>(s_.threads); used >= 1; used /= 2) {
        plan::Request request{.batch = static_cast<int>(s_.batch), .microbatch = size};
        for (int d = used; d < s_.threads; ++d) request.without.push_back(d);
        plan::Workload const w(profile, cluster_, request);
        try {
          for (auto& p : candidates(w)) {
            p.gradients = plan::Gradients::together;  // as in the engine's step
            p = plan::predict(w, std::move(p));
            double const seconds = p.simulated_s + update_s(p);
            if (best && !(seconds < best_s)) continue;
            best = p;
            best_s = seconds;
          }
        } catch (plan::Infeasible const& no) {
          if (why.empty()) why = no.what();
        }
      }
    }
    if (!best) throw sg::Error(sg::Errc::bad_configuration, "--plan auto: " + why);
    return *std::move(best);
  }

  /// Predicts the plan's times (not its memory) from layers that are measured with the microbatch
  /// size of each stage.
  [[nodiscard]] Forecast predict(plan::Plan p) {
    std::map<int, sg::cluster::Profile> at;
    sg::cluster::Profile merged;
    for (auto const& stage : p.stages) {
      int const slice = slice_of(p, stage, s_.batch);
      if (at.find(slice) == at.end()) at[slice] = layers_.profile(slice, 1.0);
      auto const& measured = at[slice];
      if (merged.layers.empty()) merged = measured;
      double const scale = static_cast<double>(merged.batch) / measured.batch;
      for (int l = stage.first; l <= stage.last; ++l) {
        auto& to = merged.layers[static_cast<std::size_t>(l)];
        to = measured.layers[static_cast<std::size_t>(l)];
        to.forward_s *= scale;
        to.backward_s *= scale;
        to.activation_bytes = scaled(to.activation_bytes, scale);
        to.stash_bytes = scaled(to.stash(), scale);
      }
    }
    Forecast result;
    result.plan = plan::predict({merged, cluster_, {.batch = static_cast<int>(s_.batch)}}, p);
    result.step_s = result.plan.simulated_s + update_s(result.plan);
    return result;
  }

 private:
  static std::uint64_t scaled(std::uint64_t bytes, double scale) {
    return static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) * scale));
  }

  /// Microbatch sizes to try, in sequences.
  [[nodiscard]] std::vector<int> sizes() const {
    std::vector<int> all;
    for (std::int64_t size = s_.batch; size >= 1 && all.size() < 8; size /= 2)
      all.push_back(static_cast<int>(size));
    return all;
  }

  [[nodiscard]] std::vector<plan::Plan> candidates(plan::Workload const& w) const {
    std::vector<plan::Plan> all;
    plan::Auto const search{.budget = 100'000, .simulations = 2'000};
    for (auto& c : search.shortlist(w)) all.push_back(std::move(c.plan));
    if (!s_.compare || s_.on_gpu()) return all;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](plan::Plan const& p) {
                               return std::any_of(p.stages.begin(), p.stages.end(),
                                                  [](auto const& s) { return s.replicas() > 1; });
                             }),
              all.end());
    if (w.layers() >= static_cast<int>(w.devices().size())) all.push_back(plan::Straight{}.plan(w));
    return all;
  }

  /// Seconds of the optimizer update on the slowest stage.
  [[nodiscard]] double update_s(plan::Plan const& p) const {
    double slowest = 0;
    for (auto const& stage : p.stages) {
      double sum = 0;
      for (int l = stage.first; l <= stage.last; ++l) sum += updates_[static_cast<std::size_t>(l)];
      slowest = std::max(slowest, sum);
    }
    return slowest;
  }

  Settings const& s_;
  LayerTimer& layers_;
  sg::cluster::Cluster cluster_;
  std::vector<double> updates_;  // [layers] seconds
};

/// Checks that the plan fits the settings.
/// @throws sg::Error  bad_configuration, which names the difference
void require_plan(Settings const& s, plan::Plan const& p) {
  auto const refuse = [&](std::string const& sentence) {
    throw sg::Error(sg::Errc::bad_configuration, "--plan " + s.plan + ": " + sentence);
  };
  if (p.stages.back().last + 1 != s.chain())
    refuse("the plan is for " + std::to_string(p.stages.back().last + 1) +
           " layers, and the model has " + std::to_string(s.chain()) +
           " (embedding, two halves of each block, head); plan for this model");
  if (p.batch > 0 && p.batch != s.batch)
    refuse("the plan is for a batch of " + std::to_string(p.batch) + " sequences; add --batch " +
           std::to_string(p.batch) + ", or plan for " + std::to_string(s.batch));
  if (p.microbatches > s.batch)
    refuse(std::to_string(p.microbatches) +
           " microbatches leave some without a sequence; use a "
           "--batch of at least as many");
  for (auto const& stage : p.stages) {
    for (int const device : stage.devices)
      if (device >= s.threads)
        refuse("the plan uses device " + std::to_string(device) + ", and there are threads 0 to " +
               std::to_string(s.threads - 1) + "; add --threads " + std::to_string(device + 1));
    if (s.batch / p.microbatches < stage.replicas())
      refuse("a microbatch of " + std::to_string(s.batch / p.microbatches) +
             " sequences cannot be shared by " + std::to_string(stage.replicas()) +
             " replicas; use a larger --batch");
    if (s.compare && stage.replicas() > 1 && !s.on_gpu())
      refuse(
          "--compare cannot follow replicated stages, which add their gradients in an order "
          "of their own; leave --compare out");
  }
}

/// Reads the plan that settings.plan names; nothing if it is "auto".
std::optional<plan::Plan> given_plan(Settings const& s) {
  if (s.plan == "auto") return std::nullopt;
  auto given = sg::json::read_plan(sg::json::read_file(s.plan), s.plan);
  require_plan(s, given);
  return given;
}

}  // namespace

Forecast planned_by(Settings const& s, LayerTimer& layers) {
  auto const given = given_plan(s);
  Planning planning(s, layers);
  return planning.predict(given ? *given : planning.best());
}

sg::report::TextTable compared_times(Forecast const& f, double step_s, double fastest_s) {
  sg::report::TextTable table({"", "predicted", "measured", "difference"});
  auto const seconds = [&](char const* what, double measured_s) {
    double const share = measured_s / f.step_s - 1;
    table.add({what, sg::report::format_seconds(f.step_s), sg::report::format_seconds(measured_s),
               (share < 0 ? "" : "+") + sg::report::format_percent(share)});
  };
  seconds("step time, median", step_s);
  seconds("step time, fastest", fastest_s);
  return table;
}

}  // namespace gpt

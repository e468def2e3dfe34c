// SPDX-License-Identifier: Apache-2.0
#include "paper.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <stagger/report/chart.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "split_brain.hpp"

namespace vgg {

namespace {

namespace report = split_brain::sg::report;
namespace partition = split_brain::sg::partition;
using report::format_fixed;
using split_brain::table_2;

constexpr int cluster_ranks = 8;  // of figures 7b and 7c
constexpr int group_sizes[] = {1, 2, 4, 8};

std::string percent(double value, int digits = 1) { return format_fixed(value, digits) + " %"; }
std::string off(double value, double published) {
  double const percent = 100 * (value / published - 1);
  return (percent < 0 ? "" : "+") + format_fixed(percent, 1) + " %";
}

std::string weights() {
  report::TextTable table({"layer", "published", "here"});
  std::size_t layer = 0;
  for (auto const& each : split_brain::layers_of_weights()) {
    if (each.parameters == 0) continue;
    auto const& published = split_brain::table_1[layer++];
    table.add({published.name, std::to_string(published.weights), std::to_string(each.parameters)});
  }
  return "Table 1: parameters\n\n" + table.str();
}

/// A group size at 8 ranks.
struct GroupSize {
  int members = 1;
  std::size_t parameters = 0;  ///< of a rank
  double exchanged = 0;        ///< numbers that a rank sends in a minibatch
  double averaged = 0;         ///< likewise to average gradients
  double images_s = 0;
};
std::vector<GroupSize> sizes() {
  auto const layers = split_brain::layers_of_weights();
  std::vector<GroupSize> sizes;
  for (int const members : group_sizes) {
    auto const plan = partition::plan_split(layers, {.group = members});
    auto const run = split_brain::run_minibatch(cluster_ranks, members, members);
    sizes.push_back(
        {.members = members,
         .parameters = partition::parameters_of(plan, layers, 0),
         .exchanged = static_cast<double>(run.forward.bytes + run.backward.bytes) / sizeof(float),
         .averaged = partition::averaged_elements(plan, layers, 0, cluster_ranks),
         .images_s = run.images_s});
  }
  return sizes;
}

/// A table of claims: the published value, the result of this program, and whether they agree.
class Claims {
 public:
  void add(char const* number, char const* what, char const* published, std::string const& here,
           bool good) {
    table_.add({number, what, published, here, good ? "yes" : "no"});
  }
  [[nodiscard]] std::string str() const { return table_.str(); }

 private:
  report::TextTable table_{{"", "claim", "published", "here", "reproduced"}};
};

}  // namespace

std::string claims_of_split_brain() {
  std::vector<double> images_s;
  report::TextTable throughputs(
      {"ranks", "groups", "members", "published", "closed form", "off", "engine", "off"});
  double worst = 0;
  for (auto const& row : table_2) {
    double const fitted = split_brain::fitted_images_s(row.ranks, row.members);
    double const engine = split_brain::run_minibatch(row.ranks, row.members, row.members).images_s;
    images_s.push_back(engine);
    worst = std::max(worst, std::fabs(engine / row.images_s - 1));
    throughputs.add({std::to_string(row.ranks), std::to_string(row.ranks / row.members),
                     std::to_string(row.members), format_fixed(row.images_s, 2),
                     format_fixed(fitted, 2), off(fitted, row.images_s), format_fixed(engine, 2),
                     off(engine, row.images_s)});
  }
  auto const here = [&](int ranks, int members) {
    for (std::size_t r = 0; r < table_2.size(); ++r)
      if (table_2[r].ranks == ranks && table_2[r].members == members) return images_s[r];
    return std::numeric_limits<double>::quiet_NaN();
  };

  auto const groups = sizes();
  auto const published = [](int members) -> std::string {
    for (auto const& row : table_2)
      if (row.ranks == cluster_ranks && row.members == members)
        return format_fixed(row.images_s, 2);
    return "-";
  };
  auto const saved = [&](std::size_t size) {
    return 100 * (1 - static_cast<double>(groups[size].parameters) /
                          static_cast<double>(groups[0].parameters));
  };
  report::TextTable figures({"members", "parameters of a rank", "saved", "sent in groups",
                             "sent to average", "published images/s", "images/s"});
  bool more = true;
  bool trade = true;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    GroupSize const& of = groups[i];
    figures.add({std::to_string(of.members), std::to_string(of.parameters), percent(saved(i)),
                 format_fixed(of.exchanged, 0), format_fixed(of.averaged, 0), published(of.members),
                 format_fixed(of.images_s, 1)});
    if (i == 0) continue;
    more = more && of.exchanged > groups[i - 1].exchanged && of.averaged < groups[i - 1].averaged;
    trade =
        trade && of.parameters < groups[i - 1].parameters && of.images_s < groups[i - 1].images_s;
  }

  Claims claims;
  double convolutions = 0;
  auto const layers = split_brain::layers_of_weights();
  for (auto const& layer : layers)
    if (layer.inputs == 0) convolutions += static_cast<double>(layer.parameters);
  double const share = 100 * convolutions / static_cast<double>(groups[0].parameters);
  claims.add("Q1", "parameters in convolutions and dense layers", "24.83, 75.17 %",
             format_fixed(share, 2) + ", " + percent(100 - share, 2),
             std::fabs(share - 24.83) < 0.02);
  claims.add("Q2", "parameters of a rank saved, groups of 8", "up to 67 %", percent(saved(3)),
             std::fabs(saved(3) - 67) < 2);
  claims.add("Q3", "table 2, the row that is furthest off", "-", percent(100 * worst),
             worst < 0.05);
  double const twos = here(32, 2) / here(2, 2);
  claims.add("Q4", "groups of 2: 32 ranks over 2", "15.7", format_fixed(twos, 1), twos > 15.5);
  auto const relative = [&](int ranks, int members) {
    return here(ranks, members) / here(ranks, 1);
  };
  auto const price = [&](int few, int many, int members) {
    return format_fixed(relative(few, members), 3) + ", " +
           format_fixed(relative(many, members), 3);
  };
  auto const same = [&](int few, int many, int members) {
    return std::fabs(relative(few, members) / relative(many, members) - 1) < 0.03;
  };
  claims.add("Q5", "over data parallelism, groups of 2: 2, 32 ranks", "0.953, 0.949",
             price(2, 32, 2), same(2, 32, 2));
  claims.add("Q5", "likewise groups of 4: 4, 32 ranks", "0.860, 0.845", price(4, 32, 4),
             same(4, 32, 4));
  claims.add("Q5", "likewise groups of 8: 8, 32 ranks", "0.538, 0.529", price(8, 32, 8),
             same(8, 32, 8));
  claims.add("Q6", "larger groups exchange more and average less", "figure 7b",
             more ? "at each size" : "not at each size", more);
  claims.add("Q7", "memory against throughput, no size dominated", "figure 7c",
             trade ? "none" : "one", trade);
  double const eight = here(8, 2) / here(8, 8);
  double const all = here(32, 2) / here(32, 8);
  claims.add("Q8", "groups of 2 over groups of 8: 8, 32 ranks", "1.81, 1.79",
             format_fixed(eight, 2) + ", " + format_fixed(all, 2), std::min(eight, all) > 1.5);
  double const linear = here(32, 1) / here(1, 1);
  claims.add("Q9", "data parallelism: 32 ranks over 1", "31.9", format_fixed(linear, 1),
             linear > 31);
  for (int const members : {2, 4, 8}) {
    auto const kept = [&](int passes) {
      return static_cast<double>(split_brain::run_minibatch(members, members, passes).dense_inputs);
    };
    using split_brain::Scheme;
    auto const seconds = [&](Scheme scheme) {
      return split_brain::exchange_seconds(scheme, members, 1);
    };
    double const memory = kept(1) / kept(members);
    double const time = seconds(Scheme::in_turns) / seconds(Scheme::parts);
    std::string const k = std::to_string(members);
    claims.add("Q10", ("groups of " + k + ": memory BK : B/K, link time B : B/K").c_str(),
               (k + ", " + k).c_str(), format_fixed(memory, 1) + ", " + format_fixed(time, 1),
               memory == members && std::fabs(time / members - 1) < 1e-9);
  }

  return weights() +
         "\nTable 2: images/s, with N / (8.21 ms + 0.127 ms K (K - 1)) and the engine in " +
         "virtual time\n\n" + throughputs.str() +
         "\nFigures 7b and 7c: " + std::to_string(cluster_ranks) +
         " ranks, numbers that a rank sends in a minibatch of " +
         std::to_string(split_brain::local_batch) + " images of its own\n\n" + figures.str() +
         "\nClaims\n\n" + claims.str();
}

std::string trade_off_of_split_brain() {
  auto groups = sizes();
  std::reverse(groups.begin(), groups.end());  // memory rises along the axis
  std::vector<report::ChartPoint> published, fitted, engine;
  for (GroupSize const& of : groups) {
    double const millions = static_cast<double>(of.parameters) / 1e6;
    engine.push_back({millions, of.images_s});
    fitted.push_back({millions, split_brain::fitted_images_s(cluster_ranks, of.members)});
    for (auto const& row : table_2)
      if (row.ranks == cluster_ranks && row.members == of.members)
        published.push_back({millions, row.images_s});
  }
  std::vector<report::ChartLine> const lines{
      {"published", published}, {"closed form", fitted}, {"engine in virtual time", engine}};
  return report::chart(lines, {.title = "Groups of 8, 4, 2 and 1 of 8 ranks",
                               .x = "million parameters of a rank",
                               .y = "images/s",
                               .theme = report::SvgTheme::automatic});
}

}  // namespace vgg

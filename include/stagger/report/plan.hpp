// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans as text and pictures: a table of the stages, and a picture of the devices.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/report/detail/action_style.hpp>
#include <stagger/report/detail/svg_document.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

namespace stagger::report {

namespace detail {

/// Rising numbers as text, with ranges: "0-7", "0-2 5", "3".
[[nodiscard]] inline std::string ranges(std::vector<int> const& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t j = i;
    while (j + 1 < ids.size() && ids[j + 1] == ids[j] + 1) ++j;
    if (!out.empty()) out += ' ';
    out += std::to_string(ids[i]);
    if (j > i) out += text("-", ids[j]);
    i = j + 1;
  }
  return out;
}

/// [devices] the number of the stage on each device; -1: none.
[[nodiscard]] inline List<int> stage_of(plan::Plan const& plan, cluster::Cluster const& cluster) {
  List<int> stage(cluster.devices.size(), -1);
  int number = 0;
  for (plan::PlanStage const& s : plan.stages) {
    for (int const id : s.devices) {
      if (id < 0 || id >= cluster.size())
        raise(Errc::mismatch, "the plan uses device ", id, ", but the cluster has ", cluster.size(),
              "; give the cluster it was made for");
      stage[id] = number;
    }
    ++number;
  }
  return stage;
}

}  // namespace detail

/// A table with a line for each stage, which says what limits it, and the predictions for the
/// iteration below. Where a replica's share of a microbatch is no whole number of samples, a line
/// says what its times are for.
[[nodiscard]] inline std::string table(plan::Plan const& plan) {
  TextTable stages({"stage", "layers", "devices", "warm-up", "forward", "backward", "to next",
                    "gradients", "memory", "of", "limited by"});
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    plan::PlanStage const& s = plan.stages[i];
    stages.add({std::to_string(i), text(s.first, "-", s.last), detail::ranges(s.devices),
                std::to_string(s.warm_up), format_seconds(s.time.forward_s),
                format_seconds(s.time.backward_s),
                i + 1 < plan.stages.size() ? format_seconds(s.transfer_s) : "-",
                format_seconds(s.time.all_reduce_s), format_bytes(s.memory_bytes),
                format_bytes(s.capacity_bytes), plan::name(s.limit)});
  }
  std::string out = stages.str();
  out += text(
      "\n", counted(plan.batch, "sample"), " in ", counted(plan.microbatches, "microbatch"),
      plan.recompute ? ", forwards run again" : "",
      plan.gradients == plan::Gradients::overlapped ? ", gradients sent during the backward" : "",
      "\n");
  auto const line = [&](char const* what, std::string const& value) {
    out += std::string(what) + value + "\n";
  };
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    double const share = plan.stages[i].share(plan.batch, plan.microbatches);
    double const whole = plan::whole_samples(share);
    if (whole - share > 1e-9)
      line("rounded    ", text("a replica of stage ", i, " has ", format_fixed(share, 2),
                               " samples of a microbatch on average; its times are for ", whole));
  }
  line("estimated  ", format_seconds(plan.latency_s, 4));
  line("simulated  ", format_seconds(plan.simulated_s, 4));
  line("bound      ", format_seconds(plan.lower_bound_s, 4) + ", gap " + format_percent(plan.gap));
  line("speed-up   ", format_fixed(plan.speedup, 2) + " over one device");
  line("transfers  ", format_fixed(plan.acr, 3) + " of forward and backward, one way");
  return out;
}

/// A line for each node with the stage that each of its devices runs, or "." for none. Where a node
/// has many devices, the line shows ranges of them:
///
///     node 0  V100  0 0 0 0 0 0 0 0
///     node 1  V100  8-263: 1  264-519: 2
[[nodiscard]] inline std::string picture(plan::Plan const& plan, cluster::Cluster const& cluster) {
  constexpr int most = 32;  // devices of a line; where there are more, ranges are shown
  auto const stage = detail::stage_of(plan, cluster);
  std::size_t const width = std::to_string(plan.stages.size()).size();
  std::size_t const node_width = std::to_string(cluster.nodes()).size();
  std::size_t kind_width = 0;
  for (auto const& d : cluster.devices) kind_width = std::max(kind_width, d.kind.size());
  auto const name = [&](int d) { return stage[d] < 0 ? "." : std::to_string(stage[d]); };
  auto const alike = [&](int a, int b) {
    auto const& one = cluster.device(a);
    auto const& other = cluster.device(b);
    return one.node == other.node && one.kind == other.kind;
  };
  std::string out;
  for (int first = 0, end = 0; first < cluster.size(); first = end) {
    while (end < cluster.size() && alike(first, end)) ++end;
    auto const& device = cluster.device(first);
    bool const same_node = first > 0 && cluster.device(first - 1).node == device.node;
    std::string const node = std::to_string(device.node);
    out += same_node ? std::string(5 + node_width, ' ')
                     : "node " + std::string(node_width - node.size(), ' ') + node;
    out += "  " + device.kind + std::string(kind_width - device.kind.size() + 1, ' ');
    if (end - first <= most) {
      for (int d = first; d < end; ++d) {
        std::string const cell = name(d);
        out += std::string(width - std::min(width, cell.size()) + 1, ' ') + cell;
      }
    } else {
      for (int d = first, last = first; d < end; d = ++last) {
        while (last + 1 < end && name(last + 1) == name(d)) ++last;
        out += d == first ? " " : "  ";
        out += text(d, last > d ? text("-", last) : std::string(), ": ", name(d));
      }
    }
    out += '\n';
  }
  return out;
}

/// An SVG picture: a row for each node, a box for each device with its number, its stage and
/// the stage's layers; stages in shades from dark to light.
[[nodiscard]] inline std::string picture_svg(plan::Plan const& plan,
                                             cluster::Cluster const& cluster) {
  auto const stage = detail::stage_of(plan, cluster);
  constexpr int box = 64, gap = 8, label = 84, height = 44;
  std::string body;
  int columns = 0, x = 0, y = gap;
  for (int d = 0; d < cluster.size(); ++d) {
    auto const& device = cluster.device(d);
    if (d == 0 || cluster.device(d - 1).node != device.node) {
      if (d > 0) y += height + gap;
      x = 0;
      body += text("<text x=\"", gap, "\" y=\"", y + 27, "\">node ", device.node, "</text>\n");
    }
    int const left = label + x * (box + gap);
    int const s = stage[d];
    double const share = plan.stages.size() < 2
                             ? 0.0
                             : 0.7 * std::max(s, 0) / static_cast<double>(plan.stages.size() - 1);
    detail::Rgb const colour =
        s < 0 ? detail::Rgb{238, 240, 243}
              : detail::action_styles.front().colour.towards(detail::white, share);
    body += text("<rect x=\"", left, "\" y=\"", y, "\" width=\"", box, "\" height=\"", height,
                 "\" rx=\"4\" fill=\"", colour.hex(), "\"><title>device ", d, "</title></rect>\n");
    std::string const ink = detail::text_colour(colour).hex();
    auto const write = [&](int down, std::string const& words) {
      body += text("<text x=\"", left + box / 2, "\" y=\"", y + down,
                   "\" text-anchor=\"middle\" style=\"fill:", ink, "\">", words, "</text>\n");
    };
    write(18, s < 0 ? std::string("idle") : text("stage ", s));
    if (s >= 0) {
      auto const& of = plan.stages[static_cast<std::size_t>(s)];
      write(35, text(of.first, "-", of.last));
    }
    columns = std::max(columns, ++x);
  }
  return detail::svg_document(label + columns * (box + gap), y + height + gap, "plan",
                              detail::scheme_rules(detail::light_scheme) + "text{font-size:12px}",
                              body);
}

}  // namespace stagger::report

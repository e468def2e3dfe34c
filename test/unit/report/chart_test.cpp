// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/chart.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <locale>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "report/xml.hpp"

namespace chart_test {

namespace {

namespace report = stagger::report;
using Points = std::vector<report::ChartPoint>;

double num(std::string const& text) { return std::strtod(text.c_str(), nullptr); }

/// From places on the page to values, as the labels of an axis say.
struct Axis {
  std::vector<std::pair<double, double>> marks;  // place, value

  [[nodiscard]] double value(double place) const {
    REQUIRE(marks.size() >= 2);
    auto const [p0, v0] = marks.front();
    auto const [p1, v1] = marks.back();
    return v0 + (place - p0) * (v1 - v0) / (p1 - p0);
  }
  /// Of one pixel.
  [[nodiscard]] double pixel() const { return std::fabs(value(1) - value(0)); }
};

/// What a viewer would see.
struct Chart {
  xml::Element root;
  Axis x, y;
  std::vector<std::string> legend, samples;  // names; strokes beside them
  std::vector<Points> lines;                 // as drawn, in values
  std::vector<std::string> strokes;          // of the lines
  Points dots;
  std::string words;

  explicit Chart(std::string const& svg) : root(xml::parse(svg)) {
    double const width = num(root.get("width")), height = num(root.get("height"));
    root.each([&](xml::Element const& e) {
      if (e.name != "style") words += e.text + "|";
      if (e.name != "text") return;
      if (!e.get("x").empty()) {
        REQUIRE(num(e.get("x")) >= 0);
        REQUIRE(num(e.get("x")) <= width);
        REQUIRE(num(e.get("y")) <= height);
      }
      std::string const kind = e.get("class");
      bool const number = e.text.find_first_not_of("-0123456789.") == std::string::npos;
      if (kind == "small weak y") y.marks.emplace_back(num(e.get("y")) - 4, num(e.text));
      if (kind == "small weak x" && number) x.marks.emplace_back(num(e.get("x")), num(e.text));
      if (kind == "small") legend.push_back(e.text);
    });
    root.each([&](xml::Element const& e) {
      if (e.name == "circle")
        dots.push_back({x.value(num(e.get("cx"))), y.value(num(e.get("cy")))});
      if (e.name != "path" || e.get("class") != "line") return;
      std::string const look = e.get("stroke") + e.get("stroke-dasharray");
      std::string const d = e.get("d");
      if (d.find('h') != std::string::npos) {
        samples.push_back(look);
        return;
      }
      strokes.push_back(look);
      lines.emplace_back();
      for (char const* at = d.c_str(); *at != '\0';) {
        REQUIRE(*at++ == (lines.back().empty() ? 'M' : 'L'));
        char* end = nullptr;
        double const left = std::strtod(at, &end);
        double const top = std::strtod(end, &end);
        REQUIRE(left >= 0);
        REQUIRE(left <= width);
        REQUIRE(top >= 0);
        REQUIRE(top <= height);
        lines.back().push_back({x.value(left), y.value(top)});
        at = end;
      }
    });
  }
};

std::string drawn(std::vector<Points> const& lines, report::ChartOptions const& options = {}) {
  static std::vector<std::string> const names{"a", "b", "c", "d", "e", "f", "g", "h", "i"};
  std::vector<report::ChartLine> all;
  for (std::size_t l = 0; l < lines.size(); ++l) all.push_back({names.at(l), lines[l]});
  return report::chart(all, options);
}

}  // namespace

TEST_CASE("report/chart: points lie where the labels of the axes say", "[report]") {
  std::vector<std::vector<Points>> const charts{
      {{{0, 2.5}, {1, 1.25}, {4, 0.5}}, {{0.5, 2}, {3.5, 0.75}}},
      {{{-3, -1}, {0, 4}, {7, -2}}},
      {{{1e9, 5}, {1e9 + 1, 6}}},          // far from 0
      {{{0, 1e14}, {1e-6, 9e14}}},         // large and small
      {{{2, 3}, {2, 5}, {2, 4}, {6, 4}}},  // upright
      {{{0, 7}, {5, 7}}},                  // level
  };
  for (auto const& lines : charts)
    for (auto const& [width, height] : {std::pair{720, 400}, {200, 200}, {2000, 300}}) {
      Chart const chart(
          drawn(lines, {.width = width, .height = height, .title = "t", .x = "s", .y = "m"}));
      REQUIRE(chart.lines.size() == lines.size());
      for (std::size_t l = 0; l < lines.size(); ++l) {
        REQUIRE(chart.lines[l].size() == lines[l].size());
        for (std::size_t i = 0; i < lines[l].size(); ++i) {
          CAPTURE(width, l, i);
          CHECK(std::fabs(chart.lines[l][i].x - lines[l][i].x) <= 0.3 * chart.x.pixel());
          CHECK(std::fabs(chart.lines[l][i].y - lines[l][i].y) <= 0.3 * chart.y.pixel());
        }
      }
    }
}

TEST_CASE("report/chart: an axis begins at 0 unless its values lie far from it", "[report]") {
  auto const lowest = [](Points const& points) {
    auto const chart = Chart(drawn({points}));
    return chart.y.marks.front().second;
  };
  REQUIRE(lowest({{0, 1}, {1, 4}}) == 0);
  REQUIRE(lowest({{0, 3.9}, {1, 4}}) >= 3.9);
  REQUIRE(lowest({{0, -4}, {1, 4}}) < 0);
}

TEST_CASE("report/chart: the legend names every line, in order and in its colour", "[report]") {
  std::vector<Points> lines;
  for (int l = 0; l < 9; ++l) lines.push_back({{0, 1.0 * l}, {1, 2.0 * l}});
  for (int const width : {200, 720}) {
    Chart const chart(drawn(lines, {.width = width}));
    REQUIRE(chart.legend == std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h", "i"});
    REQUIRE(chart.samples == chart.strokes);
    REQUIRE(std::set<std::string>(chart.strokes.begin(), chart.strokes.end()).size() == 9);
    for (auto const& [place, value] : chart.x.marks) REQUIRE(place <= width);
  }
}

TEST_CASE("report/chart: one point is a dot, and no points are an empty chart", "[report]") {
  Chart const one(drawn({{{3, 5}}, {}}));
  REQUIRE(one.lines.empty());
  REQUIRE(one.dots.size() == 1);
  CHECK(one.dots[0].x == Approx(3).margin(one.x.pixel()));
  CHECK(one.dots[0].y == Approx(5).margin(one.y.pixel()));
  REQUIRE(one.legend == std::vector<std::string>{"a", "b"});
  for (double const value : {0.0, -2.0, 1e15, 1e-300}) Chart const level(drawn({{{value, value}}}));
  for (std::vector<Points> const& nothing : {std::vector<Points>{}, {{}, {}}}) {
    Chart const chart(drawn(nothing));
    REQUIRE(chart.lines.empty());
    REQUIRE(chart.dots.empty());
    REQUIRE(chart.x.marks.size() >= 2);
    REQUIRE(chart.y.marks.size() >= 2);
  }
}

TEST_CASE("report/chart: of more points than pixels, the extremes remain", "[report]") {
  Points points;
  for (int i = 0; i < 100000; ++i) points.push_back({1.0 * i, std::sin(i * 1e-4)});
  points[31416].y = 9;
  points[77777].y = -9;
  std::string const svg = drawn({points});
  REQUIRE(svg.size() < 100000);
  Chart const chart(svg);
  auto const& line = chart.lines[0];
  auto const by_y = [](report::ChartPoint const& a, report::ChartPoint const& b) {
    return a.y < b.y;
  };
  auto const high = *std::max_element(line.begin(), line.end(), by_y);
  auto const low = *std::min_element(line.begin(), line.end(), by_y);
  CHECK(high.y == Approx(9).margin(chart.y.pixel()));
  CHECK(high.x == Approx(31416).margin(chart.x.pixel()));
  CHECK(low.y == Approx(-9).margin(chart.y.pixel()));
  CHECK(line.front().x == Approx(0).margin(chart.x.pixel()));
  CHECK(line.back().x == Approx(99999).margin(chart.x.pixel()));
  for (auto const& point : line)  // on the curve
    CHECK((std::fabs(point.y - std::sin(point.x * 1e-4)) < 3 * chart.y.pixel() ||
           std::fabs(std::fabs(point.y) - 9) < chart.y.pixel()));
}

TEST_CASE("report/chart: title, names and axes are shown, whatever they contain", "[report]") {
  Points const points{{0, 1}, {1, 2}};
  report::ChartLine const line{"<a> & \"b\"", points};
  Chart const chart(
      report::chart({&line, 1}, {.title = "x < y", .x = "time & space", .y = "\x01"}));
  REQUIRE(chart.legend == std::vector<std::string>{"<a> & \"b\""});
  REQUIRE(chart.words.find("x < y|") != std::string::npos);
  REQUIRE(chart.words.find("time & space|") != std::string::npos);
  for (auto const theme :
       {report::SvgTheme::light, report::SvgTheme::dark, report::SvgTheme::automatic}) {
    std::string const svg = drawn({points}, {.theme = theme});
    REQUIRE((svg.find("prefers-color-scheme") != std::string::npos) ==
            (theme == report::SvgTheme::automatic));
  }
}

TEST_CASE("report/chart: the same bytes for the same input, in every locale", "[report]") {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  Points const points{{0, 0.125}, {12345.5, 2.25}};
  std::string const before = drawn({points});
  auto const old = std::locale::global(std::locale(std::locale::classic(), new Comma));
  std::string const again = drawn({points});
  std::locale::global(old);
  REQUIRE(before == again);
}

TEST_CASE("report/chart: refuses what cannot be drawn", "[report]") {
  using Catch::Matchers::Contains;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double inf = std::numeric_limits<double>::infinity();
  REQUIRE_THROWS_WITH(drawn({{{0, 1}, {1, nan}}}),
                      Contains("point 1 of the line 'a' lies at 1, nan"));
  REQUIRE_THROWS_WITH(drawn({{}, {{nan, 1}}}), Contains("point 0 of the line 'b' lies at nan, 1"));
  REQUIRE_THROWS_WITH(drawn({{{0, -inf}}}), Contains("lies at 0, -inf"));
  REQUIRE_THROWS_WITH(drawn({{{0, 1e16}}}), Contains("from -1e15 to 1e15"));
  REQUIRE_THROWS_WITH(drawn({{{0, 1}, {2, 1}, {1, 1}}}),
                      Contains("point 2 of the line 'a' at x 1 lies before the one at 2"));
  REQUIRE_THROWS_WITH(drawn({}, {.width = 199}), Contains("a chart of 199 by 400 pixels"));
  REQUIRE_THROWS_WITH(drawn({}, {.height = 10001}), Contains("a chart of 720 by 10001 pixels"));
}

}  // namespace chart_test

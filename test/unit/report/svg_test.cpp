// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/svg.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>
#include <string>
#include <vector>

#include "catch.hpp"
#include "report/sample.hpp"
#include "report/xml.hpp"

namespace svg_test {

namespace {

namespace report = stagger::report;
using sample::Kind;
using sample::Timeline;

/// A block or a label as it lies on the page, in pixels.
struct Box {
  std::string kind;  ///< class, such as "f0"
  double left, right, middle;
};
struct Area {
  std::string kind;
  double left, right, top, bottom;
};
struct Label {
  std::string kind, text;
  double x, y;
};

/// What a viewer would paint: the lanes' strokes and numbers, in page coordinates.
struct Picture {
  xml::Element root;
  std::vector<Box> boxes;
  std::vector<Area> areas;
  std::vector<Label> labels;
  std::vector<std::array<double, 4>> rails;  // x, y, width, height
  std::string style, all_text;

  explicit Picture(std::string const& svg) : root(xml::parse(svg)) {
    root.each([&](xml::Element const& e) {
      if (e.name == "style") {
        style = e.text;
      } else {
        all_text += e.text + "|";
      }
      if (e.name == "g" && e.get("class") == "rail") {
        for (xml::Element const& r : e.children) {
          rails.push_back(
              {num(r.get("x")), num(r.get("y")), num(r.get("width")), num(r.get("height"))});
        }
      }
      if (e.name == "g" && e.get("transform").find(")scale(.1)") != std::string::npos) lane(e);
    });
  }

  static double num(std::string const& text) { return std::strtod(text.c_str(), nullptr); }

  void lane(xml::Element const& g) {
    std::string const move = g.get("transform");
    char* rest = nullptr;
    double const x0 = std::strtod(move.c_str() + std::string("translate(").size(), &rest);
    double const y0 = std::strtod(rest, nullptr);
    for (xml::Element const& e : g.children) {
      if (e.name == "path" && e.get("class").substr(0, 2) == "q ")
        outlines(e, x0, y0);
      else if (e.name == "path")
        strokes(e, x0, y0);
      if (e.name == "text") {
        for (xml::Element const& span : e.children) {
          labels.push_back({e.get("class").substr(2), span.text, x0 + num(span.get("x")) / 10,
                            y0 + num(e.get("y")) / 10});
        }
      }
    }
  }

  /// Path data of rectangles: M x y h width v height h -width z.
  void outlines(xml::Element const& e, double x0, double y0) {
    std::string const d = e.get("d");
    for (char const* at = d.c_str(); *at != '\0';) {
      double numbers[5] = {};
      char const* const commands = "M hvh";
      for (int i = 0; i < 5; ++i) {
        REQUIRE(*at++ == commands[i]);
        char* end = nullptr;
        numbers[i] = std::strtod(at, &end);
        REQUIRE(end != at);
        at = end;
      }
      REQUIRE(*at++ == 'z');
      REQUIRE(numbers[2] > 0);
      REQUIRE(numbers[3] > 0);
      REQUIRE(numbers[4] == -numbers[2]);
      areas.push_back({e.get("class").substr(2), x0 + numbers[0] / 10,
                       x0 + (numbers[0] + numbers[2]) / 10, y0 + numbers[1] / 10,
                       y0 + (numbers[1] + numbers[3]) / 10});
    }
  }

  /// Path data of moves and horizontal lines only: M x y, m dx dy, h length.
  void strokes(xml::Element const& e, double x0, double y0) {
    std::string const d = e.get("d");
    double x = 0;
    double y = 0;
    for (char const* at = d.c_str(); *at != '\0';) {
      char const command = *at++;
      char* end = nullptr;
      double const first = std::strtod(at, &end);
      REQUIRE(end != at);
      at = end;
      if (command == 'h') {
        REQUIRE(first > 0);
        boxes.push_back({e.get("class"), x0 + x / 10, x0 + (x + first) / 10, y0 + y / 10});
        x += first;
        continue;
      }
      double const second = std::strtod(at, &end);
      REQUIRE(end != at);
      at = end;
      REQUIRE((command == 'M' || command == 'm'));
      x = command == 'M' ? first : x + first;
      y = command == 'M' ? second : y + second;
    }
  }

  [[nodiscard]] std::vector<Box> of(std::string const& kind) const {
    std::vector<Box> found;
    for (Box const& box : boxes) {
      if (box.kind == kind) found.push_back(box);
    }
    return found;
  }
};

/// Every action of a one-chunk timeline has one block, where its times say, in its rank's lane.
void check_blocks(Picture const& picture, Timeline const& timeline, double width, double longest_s,
                  std::size_t rail) {
  double const left = picture.rails.at(rail)[0];
  double const scale = (width - left - 20) / longest_s;
  std::size_t total = 0;
  for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
    std::array<double, 4> const& lane = picture.rails.at(rail + r);
    double const middle = lane[1] + lane[3] / 2;
    for (auto const& span : timeline.row(r)) {
      std::string const kind = std::string(1, "fbiw"[static_cast<int>(span.action.kind)]) + "0";
      auto const matches =
          std::count_if(picture.boxes.begin(), picture.boxes.end(), [&](Box const& box) {
            double const at = left + span.start_s * scale;
            double const end = left + span.end_s * scale;
            return box.kind == kind && std::fabs(box.left - at) < 0.11 && box.right <= end + 0.11 &&
                   box.right > end - 1.2 && std::fabs(box.middle - middle) < 0.01;
          });
      CHECK(matches == 1);
      ++total;
    }
  }
  CHECK(total > 0);
}

struct Lab {
  double l, a, b;
};

/// sRGB, 0 to 1 and linear, to CIE L*a*b* (D65).
Lab lab(double r, double g, double b) {
  auto const f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  double const x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
  double const y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  double const z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double linear(double part) {
  return part <= 0.04045 * 255 ? part / 255 / 12.92 : std::pow((part / 255 + 0.055) / 1.055, 2.4);
}

}  // namespace

TEST_CASE("report/svg: every action is exactly one block, where its times say", "[report]") {
  for (bool const split : {false, true}) {
    for (int const ranks : {1, 4, 8, 12, 40}) {
      Timeline const timeline =
          sample::play(sample::one_f_one_b(ranks, 8, split), 1.3e-3, 1e-3, 0.8e-3, 0.1);
      double longest = 0;
      for (auto const& span : timeline.spans) longest = std::max(longest, span.end_s);
      Picture const picture(report::svg(timeline, {.width = 1100, .title = "t"}));
      CHECK(picture.boxes.size() == timeline.spans.size());
      check_blocks(picture, timeline, 1100, longest, 0);
    }
  }
}

TEST_CASE("report/svg: blocks of a rank never overlap, not even the shortest", "[report]") {
  Timeline const timeline = sample::play(sample::one_f_one_b(4, 400), 1, 1, 1);
  Picture const picture(report::svg(timeline, {.width = 960}));
  CHECK(picture.boxes.size() == 3200);
  auto boxes = picture.boxes;
  std::sort(boxes.begin(), boxes.end(), [](Box const& a, Box const& b) {
    return a.middle < b.middle || (a.middle == b.middle && a.left < b.left);
  });
  for (std::size_t i = 1; i < boxes.size(); ++i) {
    if (boxes[i].middle == boxes[i - 1].middle) REQUIRE(boxes[i - 1].right <= boxes[i].left + 1e-9);
  }
}

TEST_CASE("report/svg: numbers name the microbatch, inside their block", "[report]") {
  Timeline const timeline = sample::play(sample::one_f_one_b(4, 12), 1, 1, 1);
  Picture const picture(report::svg(timeline, {.width = 1200}));
  CHECK(picture.labels.size() == 96);
  for (Label const& label : picture.labels) {
    auto const box = std::find_if(picture.boxes.begin(), picture.boxes.end(), [&](Box const& one) {
      return one.kind == label.kind && one.left < label.x && label.x < one.right &&
             std::fabs(one.middle - label.y) < 13;
    });
    REQUIRE(box != picture.boxes.end());
    CHECK(std::fabs(label.x - (box->left + box->right) / 2) < 0.11);
    CHECK(box->right - box->left >= 4.0 * static_cast<double>(label.text.size()));
  }
  std::string order;
  for (Label const& label : picture.labels) order += label.kind == "f0" ? label.text + " " : "";
  CHECK_THAT(order, Catch::StartsWith("0 1 2 3 4 5 6 7 8 9 10 11 0 1 2"));
  CHECK(Picture(report::svg(timeline, {.numbers = false})).labels.empty());
  CHECK(Picture(report::svg(sample::play(sample::gpipe(4, 300), 1, 1, 1), {.width = 400}))
            .labels.empty());
}

TEST_CASE("report/svg: all blocks of a kind that have room for their numbers show them",
          "[report]") {
  for (int width = 240; width <= 1000; width += 9) {
    Timeline const timeline = sample::play(sample::gpipe(2, 9), 1, 0.5, 0.6);
    Picture const picture(report::svg(timeline, {.width = width}));
    for (std::string const kind : {"f0", "b0"}) {
      auto const boxes = picture.of(kind);
      REQUIRE(boxes.size() == 18);
      double least = 1e9;
      for (Box const& box : boxes) least = std::min(least, box.right - box.left);
      auto const shown = std::count_if(picture.labels.begin(), picture.labels.end(),
                                       [&](Label const& l) { return l.kind == kind; });
      CAPTURE(width, kind, least);
      if (least > 0.6 * 7.1 + 1.5) CHECK(shown == 18);  // of one digit, at the smallest size
      if (least < 0.6 * 6.9 + 1.5) CHECK(shown == 0);
    }
  }
  Timeline uneven;  // thirty long blocks, and one that is too short for its number
  uneven.begin_row();
  for (int m = 0; m <= 30; ++m) {
    double const start = uneven.spans.empty() ? 0 : uneven.spans.back().end_s;
    uneven.add({.action = {.kind = Kind::forward, .microbatch = m},
                .start_s = start,
                .end_s = start + (m == 7 ? 0.05 : 1)});
  }
  Picture const picture(report::svg(uneven));
  CHECK(picture.labels.size() == 30);
  for (Label const& label : picture.labels) CHECK(label.text != "7");
}

TEST_CASE("report/svg: legend and figures stay inside a narrow picture", "[report]") {
  Timeline timeline = sample::play(sample::one_f_one_b(2, 3, true), 1, 1, 1);
  for (Kind const kind : {Kind::backward, Kind::reduce_gradient, Kind::send_forward}) {
    double const end = timeline.row(0).back().end_s;
    sample::add_to_row(timeline, 0, {.action = {.kind = kind}, .start_s = end, .end_s = end + 1});
  }
  for (int width = 200; width <= 1200; width += 50) {
    std::size_t entries = 0, figures = 0;
    xml::parse(report::svg(timeline, {.width = width})).each([&](xml::Element const& e) {
      if (e.name == "text" && e.get("class") == "small") {  // a letter is 5.5 pixels wide at least
        double const right = Picture::num(e.get("x")) + 5.5 * static_cast<double>(e.text.size());
        CAPTURE(width, e.text);
        CHECK(right <= width);
        entries += e.text.empty() ? 0 : 1;
        for (xml::Element const& span : e.children) {
          CAPTURE(span.text);
          CHECK(16 + 5.5 * static_cast<double>(span.text.size()) <= width);
          figures = std::max(figures, span.text.size());
        }
      }
    });
    CHECK(entries == 6);
    CHECK(figures > (width < 400 ? 8U : 40U));
  }
}

TEST_CASE("report/svg: stages of one rank have shades of their own", "[report]") {
  Timeline const timeline = sample::play(sample::two_chunks(3, 5), 1, 1, 1);
  Picture const picture(report::svg(timeline));
  for (char const* const kind : {"f0", "f1", "b0", "b1"}) CHECK(picture.of(kind).size() == 15);
  CHECK_THAT(picture.all_text, Catch::Contains("lighter: later stage"));
}

TEST_CASE("report/svg: the halves of a pair share its time, one above the other", "[report]") {
  Timeline const timeline = sample::timeline_of({{{{Kind::forward, 0, 0, 0, true}, 0, 2},
                                                  {{Kind::backward, 1, 3}, 0, 2},
                                                  {{Kind::forward, 0, 1}, 2, 3}}});
  Picture const picture(report::svg(timeline));
  REQUIRE(picture.boxes.size() == 3);
  Box const upper = picture.of("f0 h").at(0);
  Box const lower = picture.of("b1 h").at(0);
  CHECK(upper.left == lower.left);
  CHECK(upper.right == lower.right);
  CHECK(upper.middle < lower.middle);
  CHECK(picture.labels.size() == 3);
}

TEST_CASE("report/svg: messages are thin lines below their lane, if they are wanted", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);
  sample::add_to_row(timeline, 0, {{Kind::send_forward, 0, 0}, 1, 1.5});
  sample::add_to_row(timeline, 1, {{Kind::recv_forward, 1, 0}, 1, 1.5});
  Picture const with(report::svg(timeline));
  auto const lines = with.of("m0");
  REQUIRE(lines.size() == 2);
  for (std::size_t r = 0; r < 2; ++r) CHECK(lines[r].middle > with.rails[r][1] + with.rails[r][3]);
  CHECK_THAT(with.all_text, Catch::Contains("|message|"));
  Picture const without(report::svg(timeline, {.messages = false}));
  CHECK(without.of("m0").empty());
  CHECK(without.boxes.size() == 8);
}

TEST_CASE(
    "report/svg: a push is a thin line below its lane, a pull one above, as long as they take",
    "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);  // 9 long
  sample::add_to_row(timeline, 1, {{Kind::push, 1, 0}, 4, 12});
  sample::add_to_row(timeline, 1, {{Kind::pull, 1, 1}, 12, 18});
  Picture const picture(report::svg(timeline, {.width = 1000}));
  auto const push = picture.of("p0");
  auto const pull = picture.of("q0");
  REQUIRE(push.size() == 1);
  REQUIRE(pull.size() == 1);
  auto const& rail = picture.rails[1];
  CHECK(push[0].middle > rail[1] + rail[3]);
  CHECK(pull[0].middle < rail[1]);
  CHECK(push[0].right - push[0].left == Approx(rail[2] * 8 / 18).margin(1.1));
  CHECK(pull[0].right == Approx(rail[0] + rail[2]).margin(1.1));
  CHECK_THAT(picture.all_text, Catch::Contains("|PUSH to the parameter server|"));
}

TEST_CASE("report/svg: a reduction is a block of its own kind, inside the picture", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);  // 9 long
  for (int r = 0; r < 2; ++r)
    sample::add_to_row(timeline, static_cast<std::size_t>(r),
                       {{Kind::reduce_gradient, r, 0}, 9.0 - 2 * r, 14.0 - 2 * r});
  Picture const picture(report::svg(timeline, {.width = 1000}));
  auto const blocks = picture.of("r0");
  REQUIRE(blocks.size() == 2);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(blocks[r].middle == Approx(picture.rails[r][1] + picture.rails[r][3] / 2));
    CHECK(blocks[r].right <= picture.rails[r][0] + picture.rails[r][2] + 0.05);
  }
  CHECK(blocks[0].right > 978);
  CHECK_THAT(picture.all_text, Catch::Contains("makespan 14.0 s"));
  CHECK_THAT(picture.all_text, Catch::Contains("|R gradient reduction|"));
  CHECK_THAT(picture.all_text, !Catch::Contains("message"));
  for (Label const& label : picture.labels) CHECK(label.kind != "r0");
}

TEST_CASE("report/svg: where blocks are below a pixel, areas have their shares of the time",
          "[report]") {
  // 6 F of 1 in a row, then F 1 B 2 in turn, then B: thirds in between.
  int const ranks = 7;
  int const microbatches = 2000;
  Timeline timeline = sample::play(sample::one_f_one_b(ranks, microbatches), 1, 1, 1);
  std::string const text = report::svg(timeline, {.width = 1000, .title = "t"});
  Picture const picture(text);
  CHECK(picture.boxes.empty());
  CHECK(picture.labels.empty());
  CHECK_THAT(picture.all_text, Catch::Contains("blocks are narrower than a pixel"));
  CHECK(text.size() < 10000);
  double length = 0;
  for (auto const& span : timeline.spans) length = std::max(length, span.end_s);
  double const scale = picture.rails[0][2] / length;
  for (std::size_t r = 0; r < ranks; ++r) {
    auto const& rail = picture.rails[r];
    double sum[2] = {};
    for (Area const& area : picture.areas) {
      if (area.top < rail[1] - 0.06 || area.bottom > rail[1] + rail[3] + 0.06) continue;
      CHECK(area.left > rail[0] - 0.01);
      CHECK(area.right < rail[0] + rail[2] + 0.11);
      REQUIRE((area.kind == "f0" || area.kind == "b0"));
      sum[area.kind == "b0" ? 1 : 0] += (area.right - area.left) * (area.bottom - area.top);
      if (area.right - area.left > 500)
        CHECK((area.bottom - area.top) / rail[3] ==
              Approx(area.kind == "b0" ? 2.0 / 3 : 1.0 / 3).margin(0.01));
    }
    CHECK(sum[0] == Approx(microbatches * scale * rail[3]).epsilon(0.01));
    CHECK(sum[1] == Approx(2 * microbatches * scale * rail[3]).epsilon(0.01));
  }
  // Fewer blocks are drawn one by one, however narrow, and so are as many that are wide enough.
  CHECK(Picture(report::svg(sample::play(sample::one_f_one_b(4, 1000), 1, 1, 1))).boxes.size() ==
        8000);
  CHECK(Picture(report::svg(timeline, {.width = 9000})).boxes.size() == 28000);
  // Messages share a line.
  sample::add_to_row(timeline, 0, {{Kind::send_forward, 0, 0}, 1, 1.5});
  sample::add_to_row(timeline, 0, {{Kind::send_forward, 0, 1}, 2, 2.5});
  sample::add_to_row(timeline, 0, {{Kind::send_forward, 0, 1999}, 5000, 5000.5});
  CHECK(Picture(report::svg(timeline)).of("m0").size() == 2);
}

TEST_CASE("report/svg: two timelines share one time scale", "[report]") {
  Timeline const predicted = sample::play(sample::one_f_one_b(3, 6), 1, 1, 1);
  Timeline const measured = sample::play(sample::one_f_one_b(3, 6), 1, 1, 1, 0.3);
  double longest = 0;
  for (auto const& span : measured.spans) longest = std::max(longest, span.end_s);
  Picture const picture(report::svg(predicted, measured, {.width = 800}));
  REQUIRE(picture.rails.size() == 6);
  CHECK(picture.boxes.size() == 72);
  check_blocks(picture, predicted, 800, longest, 0);
  check_blocks(picture, measured, 800, longest, 3);
  CHECK_THAT(picture.all_text, Catch::Contains("|predicted|"));
  CHECK_THAT(picture.all_text, Catch::Contains("|measured|"));
  CHECK(picture.rails[0][2] < picture.rails[3][2]);  // the measured one took longer
}

TEST_CASE("report/svg: figures above the picture are those of the schedule", "[report]") {
  Timeline const timeline = sample::play(sample::gpipe(4, 8), 1e-3, 1e-3, 1e-3);
  CHECK_THAT(
      report::svg(timeline),
      Catch::Contains("makespan 33.0 ms &#183; bubble 9.00 ms (27.3 %) &#183; peak in flight 8"));
  CHECK_THAT(report::svg(timeline, {.time_unit = "ms & more"}),
             Catch::Contains("time in ms &amp; more"));
  CHECK_THAT(report::svg(timeline, {.figures = false}), !Catch::Contains("makespan"));
}

TEST_CASE("report/svg: the time axis has round marks with units", "[report]") {
  auto const marks = [](double second, std::string_view unit) {
    Timeline const timeline = sample::play(sample::gpipe(2, 8), second, second, second);  // 27 long
    std::string text;
    Picture(report::svg(timeline, {.time_unit = unit})).root.each([&](xml::Element const& e) {
      if (e.get("class") != "small weak tick") return;
      for (xml::Element const& span : e.children) text += span.text + ",";
    });
    return text;
  };
  CHECK(marks(1e-3, "") == "0,5 ms,10 ms,15 ms,20 ms,25 ms,");
  CHECK(marks(1, "units") == "0,5,10,15,20,25,");
  CHECK(marks(1e-7, "") == "0.0,0.5 us,1.0 us,1.5 us,2.0 us,2.5 us,");
  CHECK(marks(3e-9, "") == "0,10 ns,20 ns,30 ns,40 ns,50 ns,60 ns,70 ns,80 ns,");
}

TEST_CASE("report/svg: titles and names of any bytes stay well-formed", "[report]") {
  Timeline const timeline = sample::play(sample::gpipe(1, 1), 1, 1, 1);
  std::string const title = "a < b & \"c\" > d'\x01\xFF";
  report::SvgPanel const panel{"<&>", &timeline};
  Picture const picture(report::svg(std::span{&panel, 1}, {.title = title}));
  CHECK_THAT(picture.all_text, Catch::Contains("a < b & \"c\" > d'\xEF\xBF\xBD\xEF\xBF\xBD"));
  CHECK_THAT(picture.all_text, Catch::Contains("<&>"));
}

TEST_CASE("report/svg: each theme brings its own background", "[report]") {
  Timeline const timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);
  auto const page = [&](report::SvgTheme theme) {
    std::string const style = Picture(report::svg(timeline, {.theme = theme})).style;
    std::size_t const at = style.find(".page{fill:");
    return style.substr(at, style.find('}', at) - at);
  };
  CHECK(page(report::SvgTheme::light) == ".page{fill:#ffffff");
  CHECK(page(report::SvgTheme::dark) != page(report::SvgTheme::light));
  CHECK(page(report::SvgTheme::automatic) == page(report::SvgTheme::light));
  CHECK_THAT(report::svg(timeline, {.theme = report::SvgTheme::automatic}),
             Catch::Contains("prefers-color-scheme:dark"));
}

TEST_CASE("report/svg: a block costs few bytes", "[report]") {
  auto const size = [](int microbatches, bool numbers) {
    return report::svg(sample::play(sample::one_f_one_b(8, microbatches), 1, 1, 1),
                       {.width = 2000, .numbers = numbers})
        .size();
  };
  CHECK(size(128, false) - size(64, false) < 8 * 64 * 2 * 11);
  CHECK(size(20, true) - size(20, false) < 8 * 20 * 2 * 30);
}

TEST_CASE("report/svg: numbers do not follow the locale", "[report]") {
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  Timeline const timeline = sample::play(sample::one_f_one_b(3, 300), 1.25, 1, 1);
  std::string const before = report::svg(timeline);
  std::locale const old = std::locale::global(std::locale(std::locale::classic(), new Commas));
  std::string const after = report::svg(timeline);
  std::locale::global(old);
  CHECK(before == after);
}

TEST_CASE("report/svg: an empty timeline is an empty picture", "[report]") {
  CHECK(Picture(report::svg(Timeline{})).boxes.empty());
  Timeline rows;
  rows.row_begin.resize(3);
  CHECK(Picture(report::svg(rows)).rails.size() == 3);
  sample::add_to_row(rows, 1, {{Kind::forward, 0, 0}, 5, 5});
  CHECK(Picture(report::svg(rows)).boxes.size() == 1);
}

TEST_CASE("report/svg: what cannot be drawn is refused with a remedy", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);
  CHECK_THROWS_WITH(report::svg(timeline, {.width = 50}),
                    Catch::Contains("50 pixels") && Catch::Contains("200"));
  report::SvgPanel const panel{};
  CHECK_THROWS_AS(report::svg(std::span{&panel, 1}), stagger::Error);
  timeline.spans[1].start_s = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(report::svg(timeline), Catch::Contains("0F1 of rank 0"));
}

TEST_CASE("report/svg: kinds differ for colour-blind readers and in grey, and numbers are readable",
          "[report]") {
  // Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision
  // deficiency", 2009, severity 1: protanopia, deuteranopia, tritanopia; the last matrix is full
  // colour vision.
  double const vision[4][9] = {
      {0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998},
      {0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881},
      {1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900},
      {1, 0, 0, 0, 1, 0, 0, 0, 1}};
  Kind const kinds[] = {Kind::forward, Kind::backward, Kind::backward_weight, Kind::backward_input,
                        Kind::reduce_gradient};
  for (double const* m : {vision[0], vision[1], vision[2], vision[3]}) {
    auto const seen = [&](Kind kind) {
      auto const c = report::detail::style_of(kind).colour;
      double const r = linear(c.r), g = linear(c.g), b = linear(c.b);
      auto const part = [&](int i) {
        return std::clamp(m[i] * r + m[i + 1] * g + m[i + 2] * b, 0.0, 1.0);
      };
      return lab(part(0), part(3), part(6));
    };
    for (Kind const one : kinds) {
      for (Kind const other : kinds) {
        if (one >= other) continue;
        bool const shades = one == Kind::backward && other == Kind::backward_input;  // B contains I
        Lab const a = seen(one), b = seen(other);
        CHECK(std::sqrt(std::pow(a.l - b.l, 2) + std::pow(a.a - b.a, 2) + std::pow(a.b - b.b, 2)) >
              (shades ? 12 : 18));
        if (m == vision[3]) CHECK(std::fabs(a.l - b.l) > 12);  // in grey
      }
    }
  }
  for (Kind const kind : kinds) {
    for (std::size_t chunks = 1; chunks <= 6; ++chunks) {
      for (std::size_t c = 0; c < chunks; ++c) {
        auto const under = report::detail::chunk_colour(report::detail::style_of(kind), c, chunks);
        double const a = under.luminance() + 0.05;
        double const b = report::detail::text_colour(under).luminance() + 0.05;
        CHECK(std::max(a, b) / std::min(a, b) >= 4.5);  // WCAG 2, AA
      }
    }
  }
}

}  // namespace svg_test

// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The CSV of stage costs: a header and a line for each stage.

#include <array>
#include <cstddef>
#include <string_view>
#include <system_error>

#include <stagger/core/error.hpp>
#include <stagger/core/from_chars.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/detail/csv_fields.hpp>

namespace stagger::schedule {

/// Reads `stage,forward_s,backward_input_s,backward_weight_s,transfer_s`, then one line for each
/// stage from 0 on, in seconds. Blanks around a field are ignored, lines end in LF or CRLF.
/// @param source  what errors call the text, a file name for instance
/// @throws Error bad_data, naming line, column (in bytes, from 1) and value
[[nodiscard]] inline Costs read_costs_csv(std::string_view text,
                                          std::string_view source = "stage costs") {
  constexpr std::array<std::string_view, 5> header{"stage", "forward_s", "backward_input_s",
                                                   "backward_weight_s", "transfer_s"};
  Costs costs;
  for (int line = 1; !text.empty(); ++line) {
    char const* const begin = text.data();
    std::string_view rest = detail::take_line(text);
    std::array<double, 5> numbers{};
    for (std::size_t field = 0; field < header.size(); ++field) {
      bool const last = rest.find(',') == std::string_view::npos;
      std::string_view const value = detail::trimmed(detail::take_until(rest, ','));
      auto const require = [&](bool holds, auto const&... why) {
        if (!holds)
          raise(Errc::bad_data, source, ", line ", line, ", column ", value.data() - begin + 1,
                ": '", value.substr(0, 60), "' ", why...);
      };
      require(last == (field + 1 == header.size()), "is field ", field + 1,
              " of a line that must have 5");
      if (line == 1) {
        require(value == header[field], "is not the header '", header[field], "'");
        continue;
      }
      double& number = numbers[field];
      auto const [stop, error] = from_chars(value.data(), value.data() + value.size(), number);
      require(
          error == std::errc{} && stop == value.data() + value.size() && detail::is_cost(number),
          "is not a finite number that is not negative");
      require(field > 0 || number == static_cast<double>(costs.stages.size()),
              "is not the next stage, ", costs.stages.size());
    }
    if (line > 1) {
      costs.stages.push_back({.forward_s = numbers[1],
                              .backward_input_s = numbers[2],
                              .backward_weight_s = numbers[3],
                              .transfer_s = numbers[4]});
    }
  }
  if (costs.stages.empty())
    raise(Errc::bad_data, source, " holds no stage; give a header and a line for each");
  return costs;
}

}  // namespace stagger::schedule

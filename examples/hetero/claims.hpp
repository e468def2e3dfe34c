// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A table of a paper's claims: the published values and those of the reproduction.

#include <string>
#include <string_view>

#include <stagger/report/table.hpp>

namespace hetero {

class Claims {
 public:
  void add(char const* number, std::string const& what, std::string const& published,
           std::string const& here, bool good) {
    table_.add({number, what, published, here, good ? "yes" : "no"});
  }
  /// What is published, or found here, and asks for nothing.
  void note(char const* number, std::string const& what, std::string const& published,
            std::string const& here = "-") {
    table_.add({number, what, published, here, "-"});
  }
  /// What does not run here. @param where  it is measured or tested
  void elsewhere(char const* number, std::string const& what, std::string const& published,
                 std::string_view where) {
    note(number, what, published, "see " + std::string(where));
  }
  [[nodiscard]] std::string str() const { return table_.str(); }

 private:
  stagger::report::TextTable table_{{"", "claim", "published", "here", "reproduced"}};
};

}  // namespace hetero

// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the fuzz programs share: mutated files, and a run over them.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>

namespace fuzz {

using Random = std::mt19937_64;

/// One fuzz program.
struct Program {
  char const* name;
  std::span<std::string_view const> pieces;  ///< that mutations put into a file
  std::vector<std::string> seeds;            ///< files to begin with
  std::size_t longest = 12;                  ///< stretch that a mutation takes out
  unsigned cut = 1;  ///< of so many mutations that would cut a file off, one does

  /// Ends the program with the file that showed the fault.
  [[noreturn]] void fail(char const* what, std::string const& text) const {
    std::fprintf(stderr, "%s: %s; the file is:\n%s\n", name, what, text.c_str());
    std::exit(1);
  }

  /// A reader may only refuse a file as bad data, in a sentence that begins with its name.
  void refused(stagger::Error const& error, std::string const& text) const {
    if (error.code() != stagger::Errc::bad_data) fail(error.what(), text);
    if (std::string_view(error.what()).substr(0, 4) != "fuzz") fail(error.what(), text);
  }

  [[nodiscard]] std::string mutated(std::string text, Random& random) const {
    auto const below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
    auto const piece = [&] { return pieces[below(pieces.size())]; };
    for (std::size_t left = 1 + below(4); left > 0; --left) {
      std::size_t const at = below(text.size() + 1);
      std::size_t const length = below(1 + std::min(text.size() - at, longest));
      switch (below(6)) {
        case 0:
          text.insert(at, piece());
          break;
        case 1:
          text.replace(at, length, piece());
          break;
        case 2:
          text.erase(at, length);
          break;
        case 3:
          text.insert(below(text.size() + 1), text.substr(at, length));
          break;
        case 4:
          if (at < text.size()) text[at] = static_cast<char>(random());
          break;
        default:
          if (below(cut) == 0) text.resize(at);
      }
    }
    return text;
  }

  /// NAME [COUNT [SEED]]: hands COUNT mutated files (default 10^6) to `each(text)`, and what it
  /// came to as a whole to `judge(count, seed)`, whose answer is whether that is as it should be.
  template <class Each, class Judge>
  [[nodiscard]] int run(int argc, char** argv, Each each, Judge judge) const {
    long long const count = argc > 1 ? std::atoll(argv[1]) : 1000000;
    unsigned long long const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    if (count < 1) {
      std::fprintf(stderr, "%s: give a COUNT of 1 or more\n", name);
      return 2;
    }
    Random random(seed);
    std::string text;
    try {
      for (long long i = 0; i < count; ++i) {
        text = mutated(seeds[random() % seeds.size()], random);
        each(text);
      }
    } catch (std::exception const& error) {
      fail(error.what(), text);
    }
    return judge(count, seed) ? 0 : 1;
  }
};

}  // namespace fuzz

// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check, before training, that all ranks run the same program on the same model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/digest.hpp>
#include <stagger/core/error.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/version.hpp>

namespace stagger::collective {

/// Something that must be the same on every rank: the library, the model, the plan, an option.
struct Fact {
  std::string name{};
  std::string value{};  ///< text for error messages, or a digest
  char const* remedy = "start all ranks with one program, one model and the same options";
};

/// FNV-1a with 64 bits: the same on every machine. It detects accidental differences, not attacks.
[[nodiscard]] constexpr std::uint64_t digest(std::string_view of) noexcept {
  return stagger::detail::digest(of.data(), of.size());
}

/// The version of the library that this program was compiled with, as a fact.
[[nodiscard]] inline Fact library_fact() {
  return {"the version of stagger",
          text(STAGGER_VERSION_MAJOR, ".", STAGGER_VERSION_MINOR, ".", STAGGER_VERSION_PATCH)};
}

namespace detail {

/// The type and the numbers of an optimizer.
[[nodiscard]] [[gnu::cold]] inline Fact optimizer_fact(
    stagger::detail::OptimizerCall const& optimizer) {
  constexpr std::size_t longest = 4096;
  return {"the optimizer", optimizer.words == nullptr
                               ? std::string("unknown")
                               : optimizer.words(optimizer.optimizer).substr(0, longest)};
}

inline constexpr std::size_t shown_name = 80;
inline constexpr std::size_t shown_value = 240;

/// One fact of a rank in a fixed size; longer text is truncated.
struct ShownFact {
  char name[shown_name + 1] = {};
  char value[shown_value + 1] = {};
};

inline void copy_text(char* to, std::size_t size, std::string const& from) {
  bool const fits = from.size() <= size;
  std::size_t const n = fits ? from.size() : size - 3;
  std::memcpy(to, from.data(), n);
  if (!fits) std::memcpy(to + n, "...", 3);
}

/// Two numbers per fact; no fact has 0 for its name.
[[nodiscard]] inline std::vector<std::uint64_t> digests(std::span<Fact const> facts) {
  std::vector<std::uint64_t> all;
  for (auto const& f : facts) {
    all.push_back(digest(f.name) | 1);
    all.push_back(digest(f.value));
  }
  return all;
}

/// The ranks whose fact differs from that of rank 0.
/// @param all  [ranks][width] digests
[[nodiscard]] inline std::vector<std::size_t> unlike_first(std::span<std::uint64_t const> all,
                                                           std::size_t width, std::size_t fact) {
  std::vector<std::size_t> ranks;
  std::uint64_t const* const first = all.data() + 2 * fact;
  for (std::size_t r = 1; r < all.size() / width; ++r)
    if (!std::equal(first, first + 2, first + r * width)) ranks.push_back(r);
  return ranks;
}

/// @param others  ranks that differ from rank 0 in the fact
[[noreturn]] inline void refuse(std::span<ShownFact const> shown,
                                std::span<std::size_t const> others, std::size_t fact,
                                char const* remedy) {
  std::size_t const other = others.front();
  std::string ranks = std::to_string(other);
  for (std::size_t const r : others.subspan(1)) ranks += text(", ", r);
  ShownFact const& a = shown[0];
  ShownFact const& b = shown[other];
  if (std::strcmp(a.name, b.name) != 0) {
    auto const name_of = [](ShownFact const& f) {
      return f.name[0] == 0 ? std::string("nothing") : text("'", f.name, "'");
    };
    raise(Errc::mismatch, "ranks compare different things: number ", fact, " is ", name_of(a),
          " on rank 0, but ", name_of(b), " on rank ", other, "; start all ranks from one program");
  }
  raise(Errc::mismatch, "ranks disagree on ", a.name, ": rank 0 has '", a.value, "', rank ", other,
        " has '", b.value, "' (unlike rank 0: ", ranks, "); ", remedy);
}

}  // namespace detail

/// Compares facts between all ranks; every rank calls it, with the same names in the same order.
///
/// If all agree, this takes one small all-gather. Otherwise every rank throws the same sentence,
/// which names the first fact that differs, its value on rank 0 and on the first rank with another
/// value, and all ranks that differ from rank 0.
/// @param  gather  all-gather in place: called with as many equal parts as there are ranks, of
///                 which part `rank` is filled in; it fills in the others
/// @throws Error  Errc::mismatch if facts differ; what `gather` throws
template <class Gather>
void agree(int rank, int ranks, std::span<Fact const> facts, Gather gather) {
  auto const n = static_cast<std::size_t>(ranks);
  auto const me = static_cast<std::size_t>(rank);
  auto const own = detail::digests(facts);
  std::vector<std::uint64_t> brief(2 * n);
  brief[2 * me] = own.size();
  brief[2 * me + 1] = digest({reinterpret_cast<char const*>(own.data()), 8 * own.size()});
  gather(std::as_writable_bytes(std::span(brief)));
  std::size_t width = 0;
  bool same = true;
  for (std::size_t r = 0; r < n; ++r) {
    width = std::max<std::size_t>(width, brief[2 * r]);
    same = same && brief[2 * r] == brief[0] && brief[2 * r + 1] == brief[1];
  }
  if (same) return;
  std::vector<std::uint64_t> all(width * n);
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(me * width));
  gather(std::as_writable_bytes(std::span(all)));
  std::size_t fact = 0;
  auto others = detail::unlike_first(all, width, fact);
  while (others.empty()) others = detail::unlike_first(all, width, ++fact);
  std::vector<detail::ShownFact> shown(n);
  if (fact < facts.size()) {
    detail::copy_text(shown[me].name, detail::shown_name, facts[fact].name);
    detail::copy_text(shown[me].value, detail::shown_value, facts[fact].value);
  }
  gather(std::as_writable_bytes(std::span(shown)));
  detail::refuse(shown, others, fact, fact < facts.size() ? facts[fact].remedy : Fact{}.remedy);
}

}  // namespace stagger::collective

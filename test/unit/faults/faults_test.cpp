// SPDX-License-Identifier: Apache-2.0
#include "faults/lab.hpp"

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>

#include <fcntl.h>

#include "faults/disk.hpp"
#include "full.hpp"
#include "sanitized.hpp"

namespace faults_test {

/// Instead of that of the C library.
extern "C" int rename(char const* from, char const* to) noexcept {
  return lab::disk().renames(to) ? ::renameat(AT_FDCWD, from, AT_FDCWD, to) : 0;
}

namespace {

constexpr std::uint64_t seeds = 100000;

/// @param remembers  whether it tells of the last messages, too
/// @return what was wrong and how to see it again, or nothing
std::string play(std::uint64_t seed, lab::Counts& counts, bool remembers) {
  lab::Lab lab(seed);
  if (remembers) lab.ledger().remember();
  std::string words = lab.run(counts);
  if (words.empty()) return words;
  auto const& messages = lab.ledger().messages();
  std::size_t const first = messages.size() < 60 ? 0 : messages.size() - 60;
  for (std::size_t i = first; i < messages.size(); ++i) words += "\n    " + messages[i];
  return stagger::text(words, "\n  ", lab.words(), "\n  replay: STAGGER_SEED=", seed,
                       " build/test/test/unit_faults \"[faults]\"");
}

}  // namespace

TEST_CASE("faults/Lab: whatever fails, each push is added once and everybody ends", "[faults]") {
  lab::Counts counts;
  if (char const* const seed = std::getenv("STAGGER_SEED")) {
    std::string const wrong = play(std::strtoull(seed, nullptr, 10), counts, true);
    INFO(wrong);
    REQUIRE(wrong.empty());
    return;
  }
  // A request that comes late must not take the place of the one behind it; steps may fail between
  // the two parts of a layer; workers come back while others end their streams, or have begun in
  // some layers only; a worker goes before its first stream, or while the server's process ends.
  for (std::uint64_t const seed : {1028396U, 2083U, 18531U, 26695U, 29791U, 81916U, 97770U, 53927U,
                                   20245U, 13989U, 28726U, 38472U, 49071U, 13919U}) {
    std::string const found = play(seed, counts, false);
    INFO(found);
    REQUIRE(found.empty());
  }
  std::uint64_t const stride = full() ? 1 : sanitized ? 50 : 5;
  // Others each day, so that all of them have their turn.
  std::uint64_t const today = static_cast<std::uint64_t>(std::time(nullptr)) / (24 * 60 * 60);
  for (std::uint64_t seed = today % stride; seed < seeds; seed += stride) {
    std::string const wrong = play(seed, counts, false);
    INFO(wrong);
    REQUIRE(wrong.empty());
  }
  // The faults end the work of some, not of most.
  INFO(counts.done << " of " << counts.workers << " workers have done their work, with "
                   << counts.added << " pushes added and " << counts.sentences << " sentences");
  CHECK(counts.done > counts.workers / 2);
  CHECK(counts.sentences > counts.workers / 4);
  CHECK(counts.added > 4 * counts.workers);
}

TEST_CASE("faults/Lab: the same seed is the same run", "[faults]") {
  lab::Counts counts;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    lab::Lab first(seed);
    lab::Lab again(seed);
    first.run(counts);
    again.run(counts);
    CHECK(first.digest() == again.digest());
  }
}

}  // namespace faults_test

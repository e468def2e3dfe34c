// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The requests of MPI that an operation has open.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include <stagger/mpi/detail/connection.hpp>

namespace stagger::mpi::detail {

/// The longest message given to MPI at once: its counts are int.
inline constexpr std::size_t longest = std::size_t{1} << 30;

[[nodiscard]] inline std::size_t take_slot(Record& r, About about) {
  if (r.spare.empty()) {
    r.requests.push_back(MPI_REQUEST_NULL);
    r.about.emplace_back();
    r.spare.reserve(r.requests.size());
    r.ended.resize(r.requests.size());
    r.statuses.resize(r.requests.size());
    r.spare.push_back(static_cast<int>(r.requests.size() - 1));
  }
  auto const slot = static_cast<std::size_t>(r.spare.back());
  r.spare.pop_back();
  r.about[slot] = about;
  ++r.live;
  return slot;
}

[[nodiscard]] inline std::string doing(Record const& r) {
  return r.text() + " of rank " + std::to_string(r.context->rank);
}

inline void open_send(Record& r, int peer, Cargo cargo, std::size_t index, void const* data,
                      std::size_t bytes, int tag) {
  Context& c = *r.context;
  auto const* from = static_cast<std::byte const*>(data);
  do {
    std::size_t const n = std::min(bytes, longest);
    std::size_t const slot = take_slot(r, {peer, cargo, true, index, n});
    int const code = MPI_Isend(from, static_cast<int>(n), MPI_BYTE, c.member(peer), tag,
                               c.connection->data(), &r.requests[slot]);
    if (code != MPI_SUCCESS) check(code, "MPI_Isend", doing(r));
    from += n;
    bytes -= n;
  } while (bytes != 0);
}

inline void open_receive(Record& r, int peer, Cargo cargo, std::size_t index, void* data,
                         std::size_t bytes, int tag) {
  Context& c = *r.context;
  auto* to = static_cast<std::byte*>(data);
  do {
    std::size_t const n = std::min(bytes, longest);
    std::size_t const slot = take_slot(r, {peer, cargo, false, index, n});
    int const code = MPI_Irecv(to, static_cast<int>(n), MPI_BYTE, c.member(peer), tag,
                               c.connection->data(), &r.requests[slot]);
    if (code != MPI_SUCCESS) check(code, "MPI_Irecv", doing(r));
    to += n;
    bytes -= n;
  } while (bytes != 0);
}

/// Calls `ended(About, bytes received)` for each request that ended since.
template <class Ended> void collect(Record& r, Ended&& ended) {
  if (r.live == 0) return;
  int count = 0;
  int const code = MPI_Testsome(static_cast<int>(r.requests.size()), r.requests.data(), &count,
                                r.ended.data(), r.statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome", doing(r));
  if (count == MPI_UNDEFINED) return;
  for (int i = 0; i < count; ++i) {
    auto const k = static_cast<std::size_t>(i);
    MPI_Status const status = r.statuses[k];
    About const about = r.about[static_cast<std::size_t>(r.ended[k])];
    r.spare.push_back(r.ended[k]);  // what ends may open requests in the slots of those before it
    --r.live;
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      check(status.MPI_ERROR, "MPI_Testsome", doing(r));
    }
    int bytes = 0;
    if (!about.out && about.cargo != Cargo::native) MPI_Get_count(&status, MPI_BYTE, &bytes);
    ended(about, static_cast<std::size_t>(bytes));
  }
}

/// Takes the buffers of a failed operation back from MPI: receives that nobody has answered are
/// cancelled; one that a peer is answering, and sends that it is reading, may take until it has.
/// Time for sends counts from the first failure of the context, for a peer may be dead.
/// @return  whether MPI is through with all of them
[[nodiscard]] inline bool withdraw(Record& r) {
  using std::chrono::steady_clock;
  if (r.live == 0) return true;
  Context& c = *r.context;
  if (!c.withdrawing) c.withdrawn_at = steady_clock::now();
  c.withdrawing = true;
  for (std::size_t i = 0; i < r.requests.size(); ++i) {
    if (r.requests[i] == MPI_REQUEST_NULL) continue;
    if (!r.about[i].out && r.about[i].cargo != Cargo::native) MPI_Cancel(&r.requests[i]);
  }
  for (;;) {
    bool reads = false;
    bool writes = false;
    for (std::size_t i = 0; i < r.requests.size(); ++i) {
      if (r.requests[i] == MPI_REQUEST_NULL) continue;
      int done = 0;
      MPI_Test(&r.requests[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) (r.about[i].out ? reads : writes) = true;
    }
    auto const waited = steady_clock::now() - c.withdrawn_at;
    bool const on = (reads && waited < std::chrono::milliseconds(200)) ||
                    (writes && waited < std::chrono::seconds(2));
    if (!on && (reads || writes)) return false;
    if (!on) break;
    std::this_thread::yield();
  }
  r.spare.clear();
  for (std::size_t i = r.requests.size(); i-- > 0;) r.spare.push_back(static_cast<int>(i));
  r.live = 0;
  return true;
}

}  // namespace stagger::mpi::detail

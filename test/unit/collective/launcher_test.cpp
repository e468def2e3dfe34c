// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/launcher.hpp>

#include <map>
#include <string>

#include "catch.hpp"

namespace launcher_test {

using namespace stagger;
using namespace stagger::collective;
using Catch::Contains;

namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Launch> launch_of(Environment const& e) {
  return find_launch([&](char const* name) -> char const* {
    auto const at = e.find(name);
    return at == e.end() ? nullptr : at->second.c_str();
  });
}

void require(Environment const& e, std::string const& launcher, int rank, int size) {
  auto const launch = launch_of(e);
  REQUIRE(launch);
  REQUIRE(launch->launcher == launcher);
  REQUIRE(launch->rank == rank);
  REQUIRE(launch->size == size);
}

Environment const torch{{"RANK", "3"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "n01"},
                        {"MASTER_PORT", "29500"}};
Environment const open_mpi{{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
Environment const pmi{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
Environment const slurm{{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}};

Environment both(Environment a, Environment const& b) {
  a.insert(b.begin(), b.end());
  return a;
}

Environment without(Environment e, char const* name) {
  e.erase(name);
  return e;
}

}  // namespace

TEST_CASE("collective/launcher: the set of each launcher is read", "[collective]") {
  require(torch, "torchrun", 3, 8);
  REQUIRE(launch_of(torch)->local_rank == 1);
  REQUIRE(launch_of(torch)->address == "n01");
  REQUIRE(launch_of(torch)->port == 29500);
  require(open_mpi, "Open MPI", 3, 8);
  REQUIRE(launch_of(open_mpi)->local_rank == 2);
  REQUIRE(launch_of(open_mpi)->local_size == 4);
  REQUIRE(launch_of(slurm)->local_size == -1);
  REQUIRE(launch_of(open_mpi)->address.empty());
  require(pmi, "PMI", 0, 1);
  REQUIRE(launch_of(pmi)->local_rank == -1);
  require(slurm, "Slurm", 7, 8);
  REQUIRE_FALSE(launch_of({}));
  REQUIRE_FALSE(launch_of({{"PATH", "/bin"}, {"MASTER_ADDR", "n01"}}));
}

TEST_CASE("collective/launcher: an address given beside any launcher is taken", "[collective]") {
  auto e = slurm;
  e["MASTER_ADDR"] = "10.0.0.1";
  e["MASTER_PORT"] = "1234";
  REQUIRE(launch_of(e)->address == "10.0.0.1");
  REQUIRE(launch_of(e)->port == 1234);
}

TEST_CASE("collective/launcher: a step of Slurm smaller than a machine's share is read",
          "[collective]") {
  auto e = slurm;
  e["SLURM_NTASKS_PER_NODE"] = "32";
  REQUIRE(launch_of(e)->local_size == 8);
}

TEST_CASE("collective/launcher: mpirun within an allocation of Slurm is Open MPI", "[collective]") {
  require(both(open_mpi, slurm), "Open MPI", 3, 8);
  auto allocation = open_mpi;
  allocation["SLURM_NTASKS"] = "64";  // without a rank: of the allocation, not of a step
  require(allocation, "Open MPI", 3, 8);
}

TEST_CASE("collective/launcher: two launchers equally near must agree", "[collective]") {
  require(both(torch, open_mpi), "torchrun", 3, 8);
  auto other = open_mpi;
  other["OMPI_COMM_WORLD_RANK"] = "2";
  REQUIRE_THROWS_WITH(launch_of(both(torch, other)), Contains("torchrun says rank 3 of 8") &&
                                                         Contains("Open MPI says rank 2 of 8"));
}

TEST_CASE("collective/launcher: a part of a set is an error that lists what was found",
          "[collective]") {
  REQUIRE_THROWS_WITH(
      launch_of(without(without(torch, "MASTER_PORT"), "WORLD_SIZE")),
      Contains("torchrun lacks WORLD_SIZE, MASTER_PORT; found RANK=3, MASTER_ADDR=n01"));
  REQUIRE_THROWS_WITH(launch_of(without(torch, "RANK")),
                      Contains("lacks RANK") && Contains("WORLD_SIZE=8"));
  REQUIRE_THROWS_WITH(
      launch_of(without(open_mpi, "OMPI_COMM_WORLD_SIZE")),
      Contains("Open MPI lacks OMPI_COMM_WORLD_SIZE; found OMPI_COMM_WORLD_RANK=3"));
  REQUIRE_THROWS_WITH(launch_of(without(pmi, "PMI_RANK")),
                      Contains("PMI lacks PMI_RANK; found PMI_SIZE=1"));
  REQUIRE_THROWS_WITH(launch_of(without(slurm, "SLURM_PROCID")),
                      Contains("Slurm lacks SLURM_PROCID; found SLURM_NTASKS=8"));
}

TEST_CASE("collective/launcher: a wrong value is an error that names it", "[collective]") {
  for (char const* wrong : {"", "x", "-1", "3.5", " 3", "3 ", "99999999999"}) {
    auto e = open_mpi;
    e["OMPI_COMM_WORLD_RANK"] = wrong;
    REQUIRE_THROWS_WITH(
        launch_of(e), Contains("OMPI_COMM_WORLD_RANK of Open MPI is '" + std::string(wrong) + "'"));
  }
  auto e = slurm;
  e["SLURM_NTASKS"] = "0";
  REQUIRE_THROWS_WITH(launch_of(e), Contains("SLURM_NTASKS of Slurm is '0'"));
  e["SLURM_NTASKS"] = "7";
  REQUIRE_THROWS_WITH(launch_of(e), Contains("SLURM_PROCID is 7, but SLURM_NTASKS is 7"));
  auto port = torch;
  port["MASTER_PORT"] = "65536";
  REQUIRE_THROWS_WITH(launch_of(port), Contains("MASTER_PORT of torchrun is '65536'"));
  try {
    static_cast<void>(launch_of(port));
    FAIL("accepted");
  } catch (Error const& error) {
    REQUIRE(error.code() == Errc::bad_configuration);
  }
}

TEST_CASE("collective/launcher: a run has the name that its launcher gives it", "[collective]") {
  REQUIRE(launch_of(torch)->run == "");
  REQUIRE(launch_of(both(torch, {{"TORCHELASTIC_RUN_ID", "none"}}))->run == "none");
  REQUIRE(launch_of(both(open_mpi, {{"PMIX_NAMESPACE", "672858113"}}))->run == "672858113");
  REQUIRE(launch_of(both(pmi, {{"PMI_JOBID", "12.1"}}))->run == "12.1");
  REQUIRE(launch_of(slurm)->run == "");
  auto const job = both(slurm, {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}});
  REQUIRE(launch_of(job)->run == "12.3.");
  REQUIRE(launch_of(both(job, {{"SLURM_RESTART_COUNT", "1"}}))->run == "12.3.1");
}

TEST_CASE("collective/launcher: torchrun says whether it listens on MASTER_PORT itself",
          "[collective]") {
  REQUIRE_FALSE(launch_of(torch)->port_held);
  REQUIRE_FALSE(launch_of(both(torch, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->port_held);
  REQUIRE(launch_of(both(torch, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))->port_held);
}

TEST_CASE("collective/launcher: torchrun may be started by another launcher", "[collective]") {
  auto const agent = both(torch, {{"TORCHELASTIC_RUN_ID", "a run"}});
  for (auto const& outer : {open_mpi, pmi, slurm}) {
    require(both(agent, outer), "torchrun", 3, 8);
    REQUIRE(launch_of(both(agent, outer))->run == "a run");
  }
  REQUIRE_THROWS_WITH(launch_of(both(torch, pmi)), Contains("but PMI says rank 0 of 1"));
}

}  // namespace launcher_test

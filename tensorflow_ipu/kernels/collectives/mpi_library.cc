#include "tensorflow_ipu/kernels/collectives/mpi_library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/status/status.h"

namespace tensorflow_ipu::core {

template <typename Function>
void MpiLibrary::Find(void* loaded, const char* name, Function** function, std::string* missing) const {
  *function = reinterpret_cast<Function*>(dlsym(loaded, name));
  if (*function == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
}

absl::Status MpiLibrary::LoadFirst(const std::vector<Candidate>& candidates, MpiLibrary* library) {
  absl::Status status = absl::NotFoundError("");
  for (const auto& [flags, is_initialized] : {std::pair{RTLD_NOLOAD, true}, {RTLD_NOLOAD, false}, {0, false}}) {
    for (const Candidate& candidate : candidates) {
      MpiLibrary loaded;
      status = Load(candidate, flags, &loaded);
      if (!status.ok()) continue;
      int initialized = 0;
      loaded.Initialized(&initialized);
      if (is_initialized && initialized == 0) continue;
      *library = loaded;
      return status;
    }
  }
  return status;
}

absl::Status MpiLibrary::Initialize(bool* initialized_here) const {
  int initialized = 0;
  int finalized = 0;
  int level = 0;
  Initialized(&initialized);
  Finalized(&finalized);
  *initialized_here = initialized == 0;
  if (finalized != 0) return absl::FailedPreconditionError("MPI was finalized in this process.");
  if (initialized == 0) {
    Init_thread(nullptr, nullptr, thread_multiple, &level);
  } else {
    Query_thread(&level);
  }
  if (level >= thread_multiple) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "MPI was initialized without support for several threads. Initialize it with `MPI_THREAD_MULTIPLE`, which is the "
      "default of mpi4py.");
}

absl::Status MpiLibrary::Load(const Candidate& candidate, int flags, MpiLibrary* library) {
  // The symbols must be global, because MPI libraries load modules that use them.
  void* const loaded = dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_GLOBAL | flags);
  if (loaded == nullptr) {
    const char* const why = dlerror();  // Null if RTLD_NOLOAD finds no loaded library.
    return absl::NotFoundError(why == nullptr ? "" : why);
  }
  MpiLibrary functions;
  functions.path = candidate.path;
  std::string missing;
  functions.Find(loaded, "MPI_Initialized", &functions.Initialized, &missing);
  functions.Find(loaded, "MPI_Finalized", &functions.Finalized, &missing);
  functions.Find(loaded, "MPI_Init_thread", &functions.Init_thread, &missing);
  functions.Find(loaded, "MPI_Query_thread", &functions.Query_thread, &missing);
  functions.Find(loaded, "MPI_Finalize", &functions.Finalize, &missing);
  functions.Find(loaded, "MPI_Abort", &functions.Abort, &missing);
  functions.Find(loaded, "MPI_Error_string", &functions.Error_string, &missing);
  functions.Find(loaded, "MPI_Comm_rank", &functions.Comm_rank, &missing);
  functions.Find(loaded, "MPI_Comm_size", &functions.Comm_size, &missing);
  functions.Find(loaded, "MPI_Comm_idup", &functions.Comm_idup, &missing);
  functions.Find(loaded, "MPI_Comm_create_keyval", &functions.Comm_create_keyval, &missing);
  functions.Find(loaded, "MPI_Comm_set_attr", &functions.Comm_set_attr, &missing);
  functions.Find(loaded, "MPI_Comm_set_errhandler", &functions.Comm_set_errhandler, &missing);
  functions.Find(loaded, "MPI_Isend", &functions.Isend, &missing);
  functions.Find(loaded, "MPI_Irecv", &functions.Irecv, &missing);
  functions.Find(loaded, "MPI_Ibarrier", &functions.Ibarrier, &missing);
  functions.Find(loaded, "MPI_Ibcast", &functions.Ibcast, &missing);
  functions.Find(loaded, "MPI_Test", &functions.Test, &missing);
  functions.Find(loaded, "MPI_Cancel", &functions.Cancel, &missing);
  const auto object = [&](const char* name) {
    const auto address = reinterpret_cast<Handle>(dlsym(loaded, name));
    if (address == 0) missing += std::string(missing.empty() ? "" : ", ") + name;
    return address;
  };
  switch (candidate.interface) {
    case MpiInterface::kStandard:  // MPI 5.0, appendix A.
      functions.world = 0x101;
      functions.self = 0x102;
      functions.bytes = 0x247;
      functions.errors_return = 0x143;
      functions.thread_multiple = 4096;
      break;
    case MpiInterface::kMpich:  // `mpi.h`; fixed by the MPICH ABI Compatibility Initiative.
      functions.world = 0x44000000;
      functions.self = 0x44000001;
      functions.bytes = 0x4c00010d;
      functions.errors_return = 0x54000001;
      functions.any_source = -2;
      break;
    case MpiInterface::kOpenMpi:  // `mpi.h`: handles are addresses of objects of the library.
      functions.world = object("ompi_mpi_comm_world");
      functions.self = object("ompi_mpi_comm_self");
      functions.bytes = object("ompi_mpi_byte");
      functions.errors_return = object("ompi_mpi_errors_return");
      break;
  }
  if (!missing.empty()) return absl::NotFoundError("`" + candidate.path + "` has no " + missing + ".");
  *library = functions;
  return absl::OkStatus();
}

absl::Status MpiLibrary::StatusOf(int error, const char* what) const {
  if (error == 0) return absl::OkStatus();
  char text[1024] = {};  // The longest text of any interface has 512 characters.
  int length = 0;
  Error_string(error, text, &length);
  return absl::UnavailableError(std::string(what) + ": " + text);
}

}  // namespace tensorflow_ipu::core

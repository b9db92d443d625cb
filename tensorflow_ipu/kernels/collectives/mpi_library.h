// The functions and constants of an MPI library that is loaded at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tensorflow_ipu::core {

// The binary interfaces of MPI libraries. They differ in their constants and in the size of a handle.
enum class MpiInterface {
  kStandard,  // `libmpi_abi.so.1` of MPI 5: MPICH 5, Open MPI 6 and others.
  kMpich,     // `libmpi.so.12`: MPICH 3 and 4, Intel MPI, Cray MPICH.
  kOpenMpi,   // `libmpi.so.40`: Open MPI 4 and 5.
};

// All interfaces can be called through the same signatures. A handle is an integer or a pointer, which fits in one
// register. A function with shorter handles writes only the lower bytes of a `Handle`, so the variable must be 0 before
// the call. No array of handles is passed.
class MpiLibrary {
 public:
  using Handle = uintptr_t;
  // At least as large as the status of any interface.
  struct alignas(8) StatusBytes {
    char bytes[64];
  };

  struct Candidate {
    std::string path;
    MpiInterface interface;
  };

  // Loads the first candidate that is already loaded and initialized, else the first that is already loaded, else the
  // first that can be loaded. The library stays loaded. Returns kNotFound if there is none.
  static absl::Status LoadFirst(const std::vector<Candidate>& candidates, MpiLibrary* library);

  // Initializes MPI for several threads, unless it is initialized.
  absl::Status Initialize(bool* initialized_here) const;

  // Returns the error of a call of `what`, with MPI's description of it.
  absl::Status StatusOf(int error, const char* what) const;

  std::string path;
  Handle world = 0;
  Handle self = 0;
  Handle bytes = 0;  // The datatype of one byte.
  Handle errors_return = 0;
  int any_source = -1;
  int thread_multiple = 3;

  int (*Initialized)(int*) = nullptr;
  int (*Finalized)(int*) = nullptr;
  int (*Init_thread)(int*, char***, int, int*) = nullptr;
  int (*Query_thread)(int*) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Abort)(Handle, int) = nullptr;
  int (*Error_string)(int, char*, int*) = nullptr;
  int (*Comm_rank)(Handle, int*) = nullptr;
  int (*Comm_size)(Handle, int*) = nullptr;
  int (*Comm_idup)(Handle, Handle*, Handle*) = nullptr;
  int (*Comm_create_keyval)(int (*)(Handle, int, void*, void*, void*, int*), int (*)(Handle, int, void*, void*), int*,
                            void*) = nullptr;
  int (*Comm_set_attr)(Handle, int, void*) = nullptr;
  int (*Comm_set_errhandler)(Handle, Handle) = nullptr;
  int (*Isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*Irecv)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*Ibarrier)(Handle, Handle*) = nullptr;
  int (*Ibcast)(void*, int, Handle, int, Handle, Handle*) = nullptr;
  int (*Test)(Handle*, int*, StatusBytes*) = nullptr;
  int (*Cancel)(Handle*) = nullptr;

 private:
  static absl::Status Load(const Candidate& candidate, int flags, MpiLibrary* library);

  template <typename Function>
  void Find(void* loaded, const char* name, Function** function, std::string* missing) const;
};

}  // namespace tensorflow_ipu::core

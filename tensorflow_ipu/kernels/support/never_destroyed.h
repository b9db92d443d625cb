// Objects that exist once per process.
#pragma once

namespace tensorflow_ipu::core {

// Returns the process's object of a type. It is never destroyed, since threads may outlive static destructors.
template <typename T>
T& NeverDestroyed() {
  static T* const object = new T();
  return *object;
}

}  // namespace tensorflow_ipu::core

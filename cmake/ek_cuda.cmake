# CUDA: the kernels of src/tensor/cuda, an object library ek_tensor_cuda where there is a compiler
# for them, which the command links; a program without it has no GPU.
#
# For tests the same files are compiled a second time, for the host (tests/cuda): the object library
# ek_tensor_emulated, where there is a C++ compiler.
set(EK_CUDA AUTO CACHE STRING "CUDA: AUTO (where nvcc is there), ON (fail if missing) or OFF")
set_property(CACHE EK_CUDA PROPERTY STRINGS AUTO ON OFF)
set(EK_CUDA_ARCHITECTURES "90a-real;90-virtual" CACHE STRING "GPUs to compile for, such as 80;90a")
include(CheckLanguage)

file(GLOB ek_cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.cu)
file(GLOB ek_cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.c)
set(EK_CUDA_CHOSEN OFF)
# Sanitizers are gcc's.
if(NOT EK_CUDA STREQUAL "OFF" AND NOT EK_SANITIZE AND NOT EK_COVERAGE)
  if(NOT CMAKE_CUDA_COMPILER) # it may have come since
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  set(ENV{CUDAARCHS} "${EK_CUDA_ARCHITECTURES}") # an nvcc that does not know these is none
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${EK_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    set(EK_CUDA_CHOSEN ON)
  endif()
endif()
if(EK_CUDA STREQUAL "ON" AND NOT EK_CUDA_CHOSEN)
  message(FATAL_ERROR "EK_CUDA=ON, but there is no nvcc (or a sanitizer is asked for)")
endif()
message(STATUS "CUDA: ${EK_CUDA_CHOSEN}")

if(EK_TESTS AND NOT EK_SANITIZE) # which do not know of threads that change their stacks
  if(NOT CMAKE_CXX_COMPILER)
    unset(CMAKE_CXX_COMPILER CACHE)
  endif()
  check_language(CXX)
  if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
  else()
    message(STATUS "no C++ compiler: the kernels for CUDA are not tested")
  endif()
endif()

function(ek_cuda_library)
  if(NOT EK_CUDA_CHOSEN)
    return()
  endif()
  find_package(CUDAToolkit REQUIRED)
  add_library(ek_tensor_cuda OBJECT ${ek_cuda_kernels} ${ek_cuda_host})
  target_include_directories(ek_tensor_cuda
    PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(ek_tensor_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  set_target_properties(ek_tensor_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
    CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(EK_CUDA_ARCHITECTURES MATCHES 90a) # the only one with wgmma
    target_compile_definitions(ek_tensor_cuda PRIVATE EK_CUDA_WGMMA)
  endif()
  target_compile_definitions(ek_tensor_cuda PRIVATE EK_CUDA_NAME="CUDA ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}")
  target_link_libraries(ek_tensor_cuda PUBLIC CUDA::cudart_static)
endfunction()

function(ek_cuda_emulated)
  if(NOT CMAKE_CXX_COMPILER)
    return()
  endif()
  set(sources ${CMAKE_SOURCE_DIR}/tests/cuda/emulated.cpp
    ${CMAKE_SOURCE_DIR}/tests/cuda/emulated_touch.cpp
    ${CMAKE_SOURCE_DIR}/tests/cuda/emulated_core.cpp)
  foreach(kernels IN LISTS ek_cuda_kernels)
    get_filename_component(name ${kernels} NAME_WE)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/emulated/${name}.cpp
      CONTENT "#include \"tensor/cuda/${name}.cu\"\n")
    list(APPEND sources ${CMAKE_BINARY_DIR}/emulated/${name}.cpp)
  endforeach()
  add_library(ek_tensor_emulated OBJECT ${sources} ${ek_cuda_host})
  target_include_directories(ek_tensor_emulated PRIVATE ${CMAKE_SOURCE_DIR}/tests/cuda/emulated
    ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(ek_tensor_emulated PRIVATE EK_CUDA_WGMMA EK_CUDA_NAME="emulated CUDA")
  # Its threads leave their stacks by longjmp, which a fortified one takes for a mistake.
  target_compile_options(ek_tensor_emulated PRIVATE -U_FORTIFY_SOURCE -Wno-unknown-pragmas)
  set_target_properties(ek_tensor_emulated PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
endfunction()

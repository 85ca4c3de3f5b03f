# liburing: asynchronous reads and writes of files.  Without it (EK_URING_TARGET is empty), a pool of
# threads makes them (src/store/disk_pread.c).
set(EK_URING AUTO CACHE STRING "io_uring: AUTO (what is there), ON (fail if missing) or OFF")
set_property(CACHE EK_URING PROPERTY STRINGS AUTO ON OFF)
set(EK_URING_TARGET "")

if(NOT EK_URING STREQUAL "OFF")
  pkg_check_modules(LIBURING QUIET IMPORTED_TARGET liburing>=2.1)
endif()
if(LIBURING_FOUND)
  set(EK_URING_TARGET ek_liburing)
  add_library(ek_liburing INTERFACE)
  target_link_libraries(ek_liburing INTERFACE PkgConfig::LIBURING)
  target_compile_definitions(ek_liburing INTERFACE EK_URING)
elseif(EK_URING STREQUAL "ON")
  message(FATAL_ERROR "EK_URING=ON, but liburing 2.1 or later (liburing-dev) is not there")
endif()

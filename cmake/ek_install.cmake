# cmake --install: the command, the library (shared and static), headers, pkg-config file, CMake
# package, manual pages, shell completions.  MPI modules lie beside the library: the command and the
# library look for them in their own folder and in ../lib (src/comm/module.c), so libraries are
# installed into lib, also where the distribution has other folders for them.
if(NOT DEFINED CMAKE_INSTALL_LIBDIR) # a relative one that was given must stay relative
  set(CMAKE_INSTALL_LIBDIR lib CACHE PATH "Folder of libraries below the prefix")
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# libevenkeel.a: all layers in one archive, for programs that are linked statically with it.
get_property(layers GLOBAL PROPERTY EK_LAYERS)
list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
add_library(evenkeel_static STATIC ${objects})
set(private_libraries "-ldnnl -ljansson -lpcre2-8 -lz -lzstd -lxxhash -lgomp -lpthread -ldl -lm")
if(EK_URING_TARGET)
  string(APPEND private_libraries " -luring")
endif()
if(EK_MPI_CHOSEN)
  target_sources(evenkeel_static PRIVATE $<TARGET_OBJECTS:ek_comm_mpi_${EK_MPI_CHOSEN}>)
endif()
if(TARGET ek_tensor_cuda)
  target_sources(evenkeel_static PRIVATE $<TARGET_OBJECTS:ek_tensor_cuda>)
  string(APPEND private_libraries " -lcudart -lstdc++")
endif()
set_target_properties(evenkeel_static PROPERTIES OUTPUT_NAME evenkeel)

file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/evenkeel/*.h)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/evenkeel)
install(TARGETS evenkeel_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS evenkeel_library evenkeel_static
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(EK_MPI_CHOSEN)
  install(TARGETS evenkeel_mpi_${EK_MPI_CHOSEN} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# Relative to where the files lie, so that a prefix may be moved.
set(EK_PRIVATE_LIBRARIES "${private_libraries}")
file(RELATIVE_PATH EK_PC_UP /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_SOURCE_DIR}/cmake/evenkeel.pc.in ${CMAKE_BINARY_DIR}/evenkeel.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/evenkeel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/evenkeelConfig.cmake.in
  ${CMAKE_BINARY_DIR}/evenkeelConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/evenkeelConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/evenkeelConfig.cmake ${CMAKE_BINARY_DIR}/evenkeelConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel)

# Manual pages are written by the command, from the tables that it reads its options by.
set(pages "")
foreach(command train eval generate export check clean plan workload simulate search fit bench info)
  set(page ${CMAKE_BINARY_DIR}/man/evenkeel-${command}.1)
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
    COMMAND sh -c "'$<TARGET_FILE:evenkeel_command>' ${command} --help=man >'${page}'"
    DEPENDS evenkeel_command VERBATIM)
  list(APPEND pages ${page})
endforeach()
set(page ${CMAKE_BINARY_DIR}/man/evenkeel.1)
add_custom_command(OUTPUT ${page}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
  COMMAND sh -c "'$<TARGET_FILE:evenkeel_command>' --help=man >'${page}'"
  DEPENDS evenkeel_command VERBATIM)
list(APPEND pages ${page})
add_custom_target(evenkeel_man ALL DEPENDS ${pages})
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

install(FILES ${CMAKE_SOURCE_DIR}/cmake/completion/evenkeel.bash RENAME evenkeel
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${CMAKE_SOURCE_DIR}/cmake/completion/_evenkeel
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME evenkeel)
set(CPACK_PACKAGE_VENDOR evenkeel)
set(CPACK_PACKAGE_CONTACT "evenkeel maintainers <maintainers@users.noreply.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Mixture-of-Experts training and inference in C")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_STRIP_FILES ON)
if(EK_MPI_CHOSEN STREQUAL "mpich")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS mpich) # mpiexec, which --ranks starts workers with
elseif(EK_MPI_CHOSEN STREQUAL "openmpi")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
endif()
include(CPack)

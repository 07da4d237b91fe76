//! Links what configures the allocator into the program. A variable of the build (`JEMALLOC_SYS_WITH_MALLOC_CONF`) would not do:
//! `cargo install --git` and builds from another folder read no `.cargo/config.toml` of ours.

fn main() {
    println!("cargo:rerun-if-changed=src/allocator.c");
    // Whole: nothing refers to what is in it, since jemalloc has a weak symbol of its own for the same.
    cc::Build::new().file("src/allocator.c").link_lib_modifier("+whole-archive").compile("allocator");
}

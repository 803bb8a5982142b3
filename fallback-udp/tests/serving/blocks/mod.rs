//! FBBU, on files of this machine.

mod cutting;
mod fixture;
mod life;
mod parts;
mod requests;
mod suite;
mod waiting;

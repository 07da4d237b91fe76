//! A private certificate authority, and what it certifies: for servers whose certificates no public one knows.

use crate::{scratch::ScratchDir, unprivileged};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// An authority; its files are removed with it.
pub struct Authority {
    folder: ScratchDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// A new one, which nobody trusts yet.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = named("a private authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = ScratchDir::new("authority");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        // The servers run as somebody else.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, issuer }
    }

    /// The file with its own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Certifies these names. The key is readable by whom the servers run as.
    pub fn certify(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let file = |kind: &str| self.folder.path().join(format!("{}.{kind}", names.join("+")));
        let identity = Identity { certificate: file("crt"), key: file("key") };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.clone()).unwrap();
        params.distinguished_name = named(&names.join(" "));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(&identity.certificate, certificate.pem()).unwrap();
        write_private(&identity.key, &key.serialize_pem());
        identity
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// A certificate whose name is that of its authority would pass for one that has signed itself.
fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// PostgreSQL refuses a key that others may read.
fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    unprivileged::give(path).unwrap();
}

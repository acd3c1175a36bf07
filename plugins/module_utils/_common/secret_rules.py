# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of tokens, by vendor: the rules of gitleaks that need no name before the token. Generated, do not edit.

Made by scripts/generate_secret_rules.py from gitleaks' config/gitleaks.toml, https://github.com/gitleaks/gitleaks.

The rules are Copyright (c) 2019 Zachary Rice, under the MIT License:
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

from __future__ import annotations

_RULES = (
    (
        "a3-",
        r"<begin>A3-[A-Z0-9]{6}-(?:(?:[A-Z0-9]{11})|(?:[A-Z0-9]{6}-[A-Z0-9]{5}))-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}\b",
    ),
    ("ops_", r"ops_eyJ[a-zA-Z0-9+/]{250,}={0,3}"),
    ("p8e-", r"<begin>(p8e-(?i:[a-z0-9]{32}))<end>"),
    ("age-secret-key-1", r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    ("airtable", r"<begin>(pat[A-Za-z0-9]{14}\.[a-f0-9]{64})\b"),
    ("ltai", r"<begin>(LTAI(?i:[a-z0-9]{20}))<end>"),
    ("sk-ant-admin01", r"<begin>(sk-ant-admin01-[a-zA-Z0-9_\-]{93}AA)<end>"),
    ("sk-ant-api03", r"<begin>(sk-ant-api03-[a-zA-Z0-9_\-]{93}AA)<end>"),
    ("akcp", r"<begin>AKCp[A-Za-z0-9]{69}\b"),
    ("cmvmd", r"<begin>cmVmd[A-Za-z0-9]{59}\b"),
    (
        "authress_ ext_ sc_ scauth_",
        r"<begin>((?:sc|ext|scauth|authress)_(?i:[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.(?-i:acc)[_-][a-z0-9-]{10,32}\.[a-z0-9+/"
        r"_=-]{30,120}))<end>",
    ),
    ("a3t abia acca akia asia", r"<begin>((?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b"),
    ("absk", r"<begin>(ABSK[A-Za-z0-9+/]{109,269}={0,2})<end>"),
    ("bedrock-api-key-", r"bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t"),
    ("q~", "(?:^|[\\\\'\"`\\s>=:(,)])([a-zA-Z0-9_~.]{3}\\dQ~[a-zA-Z0-9_~.-]{31,34})(?:$|[\\\\'\"`\\s<),])"),
    ("4b1d", r"<begin>(4b1d[A-Za-z0-9]{38})\b"),
    ("clojars_", r"(?i)CLOJARS_[a-z0-9]{60}"),
    ("cloudflare v1.0-", r"<begin>(v1\.0-[a-f0-9]{24}-[a-f0-9]{146})<end>"),
    ("dapi", r"<begin>(dapi[a-f0-9]{32}(?:-\d)?)<end>"),
    ("doo_v1_", r"<begin>(doo_v1_[a-f0-9]{64})<end>"),
    ("dop_v1_", r"<begin>(dop_v1_[a-f0-9]{64})<end>"),
    ("dor_v1_", r"(?i)<begin>(dor_v1_[a-f0-9]{64})<end>"),
    ("dp.pt.", r"dp\.pt\.(?i:[a-z0-9]{43})"),
    ("duffel_", r"duffel_(?:test|live)_(?i:[a-z0-9_\-=]{43})"),
    ("dt0c01.", r"dt0c01\.(?i:[a-z0-9]{24}\.[a-z0-9]{64})"),
    ("ezak", r"<begin>EZAK(?i:[a-z0-9]{54}\b)"),
    ("eztk", r"<begin>EZTK(?i:[a-z0-9]{54}\b)"),
    ("facebook", r"(?i)<begin>(\d{15,16}(\||%)[0-9a-z\-_]{27,40})<end>"),
    ("eaac eaam", r"<begin>(EAA[MC](?i:[a-z0-9]{100,}))<end>"),
    ("flwseck_test", r"FLWSECK_TEST-(?i:[a-h0-9]{12})"),
    ("flwpubk_test", r"FLWPUBK_TEST-(?i:[a-h0-9]{32}-X)"),
    ("flwseck_test", r"FLWSECK_TEST-(?i:[a-h0-9]{32}-X)"),
    (
        "fm1 fm2_ fo1_",
        r"<begin>((?:fo1_[\w-]{43}|fm1[ar]_[a-zA-Z0-9+\/]{100,}={0,3}|fm2_[a-zA-Z0-9+\/]{100,}={0,3}))<end>",
    ),
    ("fio-u-", r"fio-u-(?i:[a-z0-9\-_=]{64})"),
    ("secret_key", "(?i)[\"']secret_key[\"']\\s*=>\\s*[\"'](sk_[\\S]{29})[\"']"),
    ("aiza", r"<begin>(AIza[\w-]{35})<end>"),
    ("ghs_ ghu_", r"(?:ghu|ghs)_[0-9a-zA-Z]{36}"),
    ("github_pat_", r"github_pat_\w{82}"),
    ("gho_", r"gho_[0-9a-zA-Z]{36}"),
    ("ghp_", r"ghp_[0-9a-zA-Z]{36}"),
    ("ghr_", r"ghr_[0-9a-zA-Z]{36}"),
    ("glcbt-", r"glcbt-[0-9a-zA-Z]{1,5}_[0-9a-zA-Z_-]{20}"),
    ("gldt-", r"gldt-[0-9a-zA-Z_\-]{20}"),
    ("glffct-", r"glffct-[0-9a-zA-Z_\-]{20}"),
    ("glft-", r"glft-[0-9a-zA-Z_\-]{20}"),
    ("glimt-", r"glimt-[0-9a-zA-Z_\-]{25}"),
    ("glagent-", r"glagent-[0-9a-zA-Z_\-]{50}"),
    ("gloas-", r"gloas-[0-9a-zA-Z_\-]{64}"),
    ("glpat-", r"glpat-[\w-]{20}"),
    ("glpat-", r"<begin>glpat-[0-9a-zA-Z_-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7}\b"),
    ("glptt-", r"glptt-[0-9a-f]{40}"),
    ("gr1348941", r"GR1348941[\w-]{20}"),
    ("glrt-", r"glrt-[0-9a-zA-Z_\-]{20}"),
    ("glrt-", r"<begin>glrt-t\d_[0-9a-zA-Z_\-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7}\b"),
    ("glsoat-", r"glsoat-[0-9a-zA-Z_\-]{20}"),
    ("_gitlab_session=", r"_gitlab_session=[0-9a-z]{32}"),
    ("eyjrijoi", r"(?i)<begin>(eyJrIjoi[A-Za-z0-9]{70,400}={0,3})<end>"),
    ("glc_", r"(?i)<begin>(glc_[A-Za-z0-9+/]{32,400}={0,3})<end>"),
    ("glsa_", r"(?i)<begin>(glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})<end>"),
    ("pat. sat.", r"(?:pat|sat)\.[a-zA-Z0-9_-]{22}\.[a-zA-Z0-9]{24}\.[a-zA-Z0-9]{20}"),
    ("atlasv1", r"(?i)[a-z0-9]{14}\.(?-i:atlasv1)\.[a-z0-9\-_=]{60,70}"),
    ("hrku-aa", r"<begin>((HRKU-AA[0-9a-zA-Z_-]{58}))<end>"),
    ("hf_", r"<begin>(hf_(?i:[a-z]{34}))<end>"),
    ("api_org_", r"<begin>(api_org_(?i:[a-z]{34}))<end>"),
    ("ico-", r"<begin>(ico-[a-zA-Z0-9]{32})<end>"),
    ("intra s-s4t2af- s-s4t2ud-", r"<begin>(s-s4t2(?:ud|af)-(?i:[abcdef0123456789]{64}))<end>"),
    ("lin_api_", r"lin_api_(?i:[a-z0-9]{40})"),
    ("_mmk", r"<begin>([A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk)<end>"),
    (
        "incomingwebhook webhook.office.com webhookb2",
        r"https://[a-z0-9]+\.webhook\.office\.com/webhookb2/[a-z0-9]{8}-([a-z0-9]{4}-){3}[a-z0-9]{12}@[a-z0-9]{8}-([a-z0"
        r"-9]{4}-){3}[a-z0-9]{12}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9]{8}-([a-z0-9]{4}-){3}[a-z0-9]{12}",
    ),
    ("ntn_", r"<begin>(ntn_[0-9]{11}[A-Za-z0-9]{32}[A-Za-z0-9]{3})<end>"),
    ("npm_", r"(?i)<begin>(npm_[a-z0-9]{36})<end>"),
    ("api-", r"<begin>(API-[A-Z0-9]{26})<end>"),
    (
        "t3blbkfj",
        r"<begin>(sk-(?:proj|svcacct|admin)-(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})T3BlbkFJ(?:[A-Za-z0-9_-]{74}|[A-Za-z0"
        r"-9_-]{58})\b|sk-[a-zA-Z0-9]{20}T3BlbkFJ[a-zA-Z0-9]{20})<end>",
    ),
    ("sha256~", r"<begin>(sha256~[\w-]{43})(?:[^\w-]|\Z)"),
    ("pplx-", "<begin>(pplx-[a-zA-Z0-9]{48})(?:[`'\"\\s;]|\\\\[nr]|$|\\b)"),
    ("pscale_tkn_", r"<begin>(pscale_tkn_(?i:[\w=\.-]{32,64}))<end>"),
    ("pscale_oauth_", r"<begin>(pscale_oauth_[\w=\.-]{32,64})<end>"),
    ("pscale_pw_", r"(?i)<begin>(pscale_pw_(?i:[\w=\.-]{32,64}))<end>"),
    ("pmak-", r"<begin>(PMAK-(?i:[a-f0-9]{24}\-[a-f0-9]{34}))<end>"),
    ("pnu_", r"<begin>(pnu_[a-zA-Z0-9]{36})<end>"),
    ("pul-", r"<begin>(pul-[a-f0-9]{40})<end>"),
    ("pypi-ageichlwas5vcmc", r"pypi-AgEIcHlwaS5vcmc[\w-]{50,1000}"),
    ("rdme_", r"<begin>(rdme_[a-z0-9]{70})<end>"),
    ("rubygems_", r"<begin>(rubygems_[a-f0-9]{48})<end>"),
    ("tk-us-", r"<begin>(tk-us-[\w-]{48})<end>"),
    ("sg.", r"<begin>(SG\.(?i:[a-z0-9=_\-\.]{66}))<end>"),
    ("xkeysib-", r"<begin>(xkeysib-[a-f0-9]{64}\-(?i:[a-z0-9]{16}))<end>"),
    (
        "sntrys_eyjpyxqio",
        r"<begin>sntrys_eyJpYXQiO[a-zA-Z0-9+/]{10,200}(?:LCJyZWdpb25fdXJs|InJlZ2lvbl91cmwi|cmVnaW9uX3VybCI6)[a-zA-Z0-9+/"
        r"]{10,200}={0,2}_[a-zA-Z0-9+/]{43}(?:[^a-zA-Z0-9+/]|\Z)",
    ),
    ("sntryu_", r"<begin>(sntryu_[a-f0-9]{64})<end>"),
    ("sm_aat", r"<begin>(sm_aat_[a-zA-Z0-9]{16})<end>"),
    ("sm_pat", r"<begin>(sm_pat_[a-zA-Z0-9]{16})<end>"),
    ("sm_sat", r"<begin>(sm_sat_[a-zA-Z0-9]{16})<end>"),
    ("shippo_", r"<begin>(shippo_(?:live|test)_[a-fA-F0-9]{40})<end>"),
    ("shpat_", r"shpat_[a-fA-F0-9]{32}"),
    ("shpca_", r"shpca_[a-fA-F0-9]{32}"),
    ("shppa_", r"shppa_[a-fA-F0-9]{32}"),
    ("shpss_", r"shpss_[a-fA-F0-9]{32}"),
    (
        "enterprise.contribsys.com gems.contribsys.com",
        r"(?i)<begin>https?://([a-f0-9]{8}:[a-f0-9]{8})@(?:gems.contribsys.com|enterprise.contribsys.com)(?:[\/|\#|\?|:]"
        r"|$)",
    ),
    ("xapp", r"(?i)xapp-\d-[A-Z0-9]+-\d+-[a-z0-9]+"),
    ("xoxb", r"xoxb-[0-9]{10,13}-[0-9]{10,13}[a-zA-Z0-9-]*"),
    ("xoxe.xoxb- xoxe.xoxp-", r"(?i)xoxe.xox[bp]-\d-[A-Z0-9]{163,166}"),
    ("xoxe-", r"(?i)xoxe-\d-[A-Z0-9]{146}"),
    ("xoxb", r"xoxb-[0-9]{8,14}-[a-zA-Z0-9]{18,26}"),
    ("xoxo xoxs", r"xox[os]-\d+-\d+-\d+-[a-fA-F\d]+"),
    ("xoxa xoxr", r"xox[ar]-(?:\d-)?[0-9a-zA-Z]{8,48}"),
    ("xoxe- xoxp-", r"xox[pe](?:-[0-9]{10,13}){3}-[a-zA-Z0-9-]{28,34}"),
    ("hooks.slack.com", r"(?:https?://)?hooks.slack.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,56}"),
    (
        "sgp_ sourcegraph",
        r"(?i)<begin>(\b(sgp_(?:[a-fA-F0-9]{16}|local)_[a-fA-F0-9]{40}|sgp_[a-fA-F0-9]{40}|[a-fA-F0-9]{40})\b)<end>",
    ),
    ("eaaa sq0atp-", r"<begin>((?:EAAA|sq0atp-)[\w-]{22,60})<end>"),
    (
        "rk_live rk_prod rk_test sk_live sk_prod sk_test",
        r"<begin>((?:sk|rk)_(?:test|live|prod)_[a-zA-Z0-9]{10,99})<end>",
    ),
    ("sk", r"SK[0-9a-fA-F]{32}"),
    ("hvb.", r"<begin>(hvb\.[\w-]{138,300})<end>"),
    ("hvs. s.", r"<begin>((?:hvs\.[\w-]{90,120}|s\.(?i:[a-z0-9]{24})))<end>"),
)
_BEGIN, _END = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))", r"(?![A-Za-z0-9])"
RULES = [(words.split(), form.replace("<begin>", _BEGIN).replace("<end>", _END)) for words, form in _RULES]
"""Rules: words of which one is in each text with such a token (in lower case), regular expression."""
